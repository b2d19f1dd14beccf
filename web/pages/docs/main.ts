/** `/docs`: Swagger UI on the OpenAPI description beside this page, with sample users to send requests as. */

import { element, find, wireThemeButton } from "@aftercommit/ui";
import swaggerUi, { type SwaggerRequest, type SwaggerUi } from "swagger-ui-dist/swagger-ui-es-bundle.js";

import type { Sample, SampleUser } from "../shared/sample.js";
import { withExamples } from "./examples.js";
import { firstSeconds } from "./streams.js";

const SCHEME = "bearer";

interface Description {
  readonly info: { readonly title: string; readonly description?: string };
  readonly externalDocs?: { readonly url?: string; readonly description?: string };
  readonly components?: { readonly securitySchemes?: Readonly<Record<string, { readonly "x-sample-users"?: string }>> };
  readonly servers?: readonly { readonly url: string }[];
}

wireThemeButton();
followTheme();
void start();

async function start(): Promise<void> {
  const about = find("about", HTMLElement);
  try {
    const response = await fetch("openapi.json");
    if (!response.ok) throw new Error(`${response.status} ${response.statusText}`);
    const api = (await response.json()) as Description;
    about.textContent = api.info.description ?? "";
    showTitle(api);
    const viewer = showViewer(api);
    await offerSamples(api, viewer);
  } catch (problem) {
    about.textContent = `openapi.json cannot be read: ${String(problem)}`;
  }
}

/** The title, and a link back where the description names one (`externalDocs`): an index page, a handbook. */
function showTitle({ info, externalDocs }: Description): void {
  document.title = `${info.title} · API`;
  // Behind a link of the same name, it would be said twice.
  find("title", HTMLElement).textContent = externalDocs?.description === info.title ? "API" : info.title;
  if (externalDocs?.url === undefined) return;
  const address = new URL(externalDocs.url, location.href);
  if (!["http:", "https:"].includes(address.protocol)) return;
  const home = find("home", HTMLAnchorElement);
  home.href = address.href;
  home.textContent = externalDocs.description ?? address.host;
  home.hidden = false;
}

function showViewer(api: Description): SwaggerUi {
  // Mounted under a prefix, the page stands beside what it describes.
  const beside = location.pathname.replace(/\/docs\/?$/, "") || "/";
  const nothing = (): null => null;
  return swaggerUi({
    domNode: find("viewer", HTMLElement),
    spec: withExamples({ ...api, servers: api.servers ?? [{ url: beside }] }),
    // Swagger UI would send the description to validator.swagger.io.
    validatorUrl: null,
    docExpansion: "list",
    defaultModelsExpandDepth: -1,
    tryItOutEnabled: true,
    displayRequestDuration: true,
    requestInterceptor: (request: SwaggerRequest) => Object.assign(request, { userFetch: firstSeconds }),
    // The page has a title of its own, and one server needs no choice.
    plugins: [{ components: { InfoContainer: nothing, ...(api.servers ? {} : { ServersContainer: nothing }) } }],
  });
}

/** Users whose tokens a development server hands out, at the address that `x-sample-users` names. */
async function offerSamples(api: Description, viewer: SwaggerUi): Promise<void> {
  const address = api.components?.securitySchemes?.[SCHEME]?.["x-sample-users"];
  if (address === undefined) return;
  const response = await fetch(new URL(address, location.href), { cache: "no-store" });
  if (!response.ok) return;
  const { users = [], systems = [] } = (await response.json()) as Partial<Sample>;
  const choice = find("sample", HTMLSelectElement);
  choice.append(...users.filter((user) => user.systems === undefined).map(optionOf));
  for (const { name, title } of systems) {
    const known = users.filter((user) => user.systems?.includes(name));
    if (known.length > 0) choice.append(element("optgroup", { label: title }, ...known.map(optionOf)));
  }
  choice.addEventListener("change", () => {
    if (choice.value) viewer.preauthorizeApiKey(SCHEME, choice.value);
    else viewer.authActions.logout([SCHEME]);
  });
  find("samples", HTMLElement).hidden = users.length === 0;
}

function optionOf({ user, name, about, token }: SampleUser): HTMLOptionElement {
  return element("option", { value: token }, `${name ?? user}: ${about}`);
}

/** Swagger UI knows its dark colours by a class. */
function followTheme(): void {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const follow = (): void => {
    root.classList.toggle("dark-mode", root.dataset["theme"] === "dark" || (!root.dataset["theme"] && system.matches));
  };
  follow();
  system.addEventListener("change", follow);
  new MutationObserver(follow).observe(root, { attributeFilter: ["data-theme"] });
}
