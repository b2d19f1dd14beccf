// Draws the OpenAPI description beside this page. Text is only ever set as text, so nothing in it can become markup.
"use strict";

const METHODS = ["get", "post", "put", "patch", "delete"];
const LONGEST_SHOWN = 100_000;

// --- colours: the same choice as on the other pages of this origin, applied before anything is painted

const THEME = "aftercommit.theme";
const THEMES = { system: "System", light: "Light", dark: "Dark" };

function keptTheme() {
  try {
    const kept = localStorage.getItem(THEME);
    return kept in THEMES ? kept : "system";
  } catch {
    return "system"; // Storage may be forbidden: then the choice lasts as long as the page.
  }
}

function applyTheme(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}

function wireTheme() {
  const names = Object.keys(THEMES);
  let theme = keptTheme();
  const name = document.getElementById("theme-name");
  name.textContent = THEMES[theme];
  document.getElementById("theme").onclick = () => {
    theme = names[(names.indexOf(theme) + 1) % names.length];
    applyTheme(theme);
    name.textContent = THEMES[theme];
    try { localStorage.setItem(THEME, theme); } catch { /* as above */ }
  };
}

applyTheme(keptTheme());

// --- the description

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

// Descriptions mark names with backticks, and with nothing else.
function prose(text) {
  return (text ?? "").split("`").map((part, place) => (place % 2 ? element("code", { textContent: part }) : part));
}

function resolved(api, value) {
  let found = value;
  while (found && found.$ref) {
    found = found.$ref.slice(2).split("/").reduce((at, part) => at?.[part.replaceAll("~1", "/").replaceAll("~0", "~")], api);
  }
  return found ?? {};
}

// A schema with its references put in, a few levels deep: what a person wants to see.
function expanded(api, schema, depth = 6) {
  if (depth === 0 || schema === null || typeof schema !== "object") return schema;
  if (Array.isArray(schema)) return schema.map((each) => expanded(api, each, depth - 1));
  const { $ref, ...rest } = schema;
  const whole = $ref ? { ...resolved(api, schema), ...rest } : schema;
  return Object.fromEntries(Object.entries(whole).map(([key, value]) => [key, expanded(api, value, depth - 1)]));
}

// Something that fits a schema, to begin with: what it gives as an example, otherwise what has to be there.
function exampleOf(schema) {
  const { example, examples, default: chosen, const: fixed, enum: values } = schema ?? {};
  for (const given of [example, examples?.[0], fixed, chosen, values?.[0]]) if (given !== undefined) return given;
  const choice = schema?.oneOf?.[0] ?? schema?.anyOf?.[0];
  if (choice) return exampleOf(choice);
  if (schema?.allOf) return Object.assign({}, ...schema.allOf.map(exampleOf));
  const type = [].concat(schema?.type ?? (schema?.properties ? "object" : "null")).find((each) => each !== "null");
  if (type === "object") return exampleObject(schema);
  if (type === "array") return schema.minItems > 0 ? [exampleOf(schema.items)] : [];
  if (type === "string") return exampleText(schema);
  if (type === "integer" || type === "number") return schema.minimum ?? 1;
  return type === "boolean" ? false : null;
}

function exampleObject({ properties = {}, required = [] }) {
  const told = Object.entries(properties).filter(([name, each]) => required.includes(name) || each.example !== undefined || each.examples);
  return Object.fromEntries(told.map(([name, each]) => [name, exampleOf(each)]));
}

function exampleText({ format, minLength = 0 }) {
  if (format === "date-time") return new Date().toISOString();
  if (format === "date") return new Date().toISOString().slice(0, 10);
  if (format === "uuid") return "00000000-0000-4000-8000-000000000000";
  return minLength > 0 ? "text".padEnd(minLength, " text") : "";
}

function describe(schema) {
  const { type, enum: values, minimum, maximum, default: chosen, format } = schema ?? {};
  const parts = [values ? values.join(" | ") : [].concat(type ?? "any").join(" | ")];
  if (format) parts.push(format);
  // JavaScript cannot write the largest numbers as they are.
  const most = maximum > Number.MAX_SAFE_INTEGER ? undefined : maximum;
  if (minimum !== undefined || most !== undefined) parts.push(most === undefined ? `${minimum} or more` : `${minimum ?? "…"} to ${most}`);
  if (chosen !== undefined) parts.push(`default ${chosen}`);
  return parts.join(", ");
}

function parameterRow(parameter, inputs) {
  const example = String(parameter.example ?? parameter.schema?.example ?? "");
  const input = element("input", { type: "text", className: "field", ariaLabel: parameter.name, placeholder: example });
  if (parameter.required) input.value = example;
  inputs.push({ parameter, input });
  return element("tr", {},
    element("th", {}, element("code", { textContent: parameter.name }), parameter.required ? " *" : ""),
    element("td", { textContent: parameter.in }),
    element("td", {}, element("div", {}, ...prose(parameter.description)),
      element("div", { className: "note", textContent: describe(parameter.schema) })),
    element("td", {}, input));
}

function responses(api, operation) {
  return Object.entries(operation.responses ?? {}).map(([status, given]) => {
    const response = resolved(api, given);
    const row = element("details", {}, element("summary", {},
      element("span", { className: "method", textContent: status }), element("span", {}, ...prose(response.description))));
    const body = element("div", { className: "body" });
    const headers = Object.entries(response.headers ?? {});
    if (headers.length) {
      body.append(element("table", {}, ...headers.map(([name, header]) => element("tr", {},
        element("th", {}, element("code", { textContent: name })),
        element("td", {}, ...prose(resolved(api, header).description))))));
    }
    for (const [type, media] of Object.entries(response.content ?? {})) {
      body.append(element("h3", { textContent: type }),
        element("pre", { textContent: JSON.stringify(expanded(api, media.schema ?? {}), null, 2) }));
    }
    row.append(body);
    return row;
  });
}

function urlOf(base, path, inputs) {
  const query = new URLSearchParams();
  let filled = path;
  for (const { parameter, input } of inputs) {
    if (parameter.in === "path") filled = filled.replace(`{${parameter.name}}`, encodeURIComponent(input.value));
    if (parameter.in === "query" && input.value !== "") query.set(parameter.name, input.value);
  }
  const asked = query.toString();
  return base + filled + (asked ? `?${asked}` : "");
}

async function send(method, url, inputs, body, out, wanting, stop) {
  const headers = {};
  const token = document.getElementById("token").value.trim();
  if (token) headers.Authorization = `Bearer ${token}`;
  for (const { parameter, input } of inputs) {
    if (parameter.in === "header" && input.value !== "") headers[parameter.name] = input.value;
  }
  if (body) headers["Content-Type"] = "application/json";
  out.hidden = false;
  wanting.hidden = true;
  out.textContent = `${method.toUpperCase()} ${url}\n…`;
  try {
    const answer = await fetch(url, { method, headers, body: body || undefined, signal: stop.signal, cache: "no-store" });
    wanting.hidden = answer.status !== 401;
    const lines = [...answer.headers].map(([name, value]) => `${name}: ${value}`).join("\n");
    const head = `${method.toUpperCase()} ${url}\n\n${answer.status} ${answer.statusText}\n${lines}\n\n`;
    await show(answer, head, out);
  } catch (problem) {
    out.textContent += problem.name === "AbortError" ? "\n(stopped)" : `\n${problem}`;
  }
}

async function show(answer, head, out) {
  let text = "";
  const reader = answer.body?.getReader();
  const decoder = new TextDecoder();
  while (reader) {
    const { done, value } = await reader.read();
    if (done) break;
    text = (text + decoder.decode(value, { stream: true })).slice(-LONGEST_SHOWN);
    out.textContent = head + text;
  }
  try { text = JSON.stringify(JSON.parse(text), null, 2); } catch { /* not JSON: shown as it is */ }
  out.textContent = head + text;
}

// A path that is too long for its line is broken after a slash.
function breakable(path) {
  return path.split(/(?<=\/)/).flatMap((part, place) => (place ? [element("wbr"), part] : [part]));
}

function operationOf(api, base, path, method, operation) {
  const inputs = [];
  const all = [...(api.paths[path].parameters ?? []), ...(operation.parameters ?? [])].map((each) => resolved(api, each));
  // What an operation says of a parameter goes before what its path says.
  const parameters = new Map();
  for (const each of all) parameters.set(`${each.in} ${each.name}`, { ...parameters.get(`${each.in} ${each.name}`), ...each });
  const body = element("div", { className: "body" });
  if (operation.description) body.append(element("p", {}, ...prose(operation.description)));
  if (parameters.size) {
    body.append(element("h3", { textContent: "Parameters" }),
      element("table", {}, ...[...parameters.values()].map((parameter) => parameterRow(parameter, inputs))));
  }
  let text = null;
  const media = resolved(api, operation.requestBody).content?.["application/json"];
  if (media) {
    const schema = expanded(api, media.schema ?? {});
    const example = media.example ?? Object.values(media.examples ?? {})[0]?.value ?? exampleOf(schema);
    const value = JSON.stringify(example, null, 2);
    const rows = Math.max(3, Math.min(16, value.split("\n").length));
    text = element("textarea", { className: "field", ariaLabel: "Request body", spellcheck: false, rows, value });
    body.append(element("h3", { textContent: "Request body" }), text, schemaOf("What it may hold", schema));
  }
  const out = element("pre", { hidden: true });
  const wanting = element("p", { className: "note", hidden: true }, "A token is needed that is good here: ",
    element("a", { href: "#token", textContent: "give one at the top of this page" }), ".");
  let stop = new AbortController();
  const ask = () => {
    const missing = inputs.find(({ parameter, input }) => parameter.required && input.value === "");
    if (missing) return missing.input.focus();
    stop.abort();
    stop = new AbortController();
    send(method, urlOf(base, path, inputs), inputs, text?.value, out, wanting, stop);
  };
  body.append(
    element("div", { className: "buttons" },
      element("button", { className: "button main", textContent: "Send", onclick: ask }),
      element("button", { className: "button", textContent: "Stop", onclick: () => stop.abort() })),
    wanting, out, element("h3", { textContent: "Answers" }), ...responses(api, operation));
  const name = element("span", { className: "method", textContent: method });
  name.dataset.method = method;
  return element("details", {},
    element("summary", {}, name, element("code", {}, ...breakable(path)),
      element("span", { className: "note", textContent: operation.summary ?? "" })),
    body);
}

function schemaOf(title, schema) {
  return element("details", {}, element("summary", { className: "note", textContent: title }),
    element("div", { className: "body" }, element("pre", { textContent: JSON.stringify(schema, null, 2) })));
}

// The way back, where the description names one (`externalDocs`): an index page, a handbook.
function showHome({ externalDocs }) {
  if (!externalDocs?.url) return;
  const address = new URL(externalDocs.url, location.href);
  if (!["http:", "https:"].includes(address.protocol)) return;
  const home = document.getElementById("home");
  home.href = address.href;
  home.textContent = externalDocs.description ?? address.host;
  home.hidden = false;
}

// Whose tokens there are to try things with, where the description says who tells (`x-sample-users`): in development.
async function offerSamples(api) {
  const told = api.components?.securitySchemes?.bearer?.["x-sample-users"];
  if (!told) return;
  const answer = await fetch(new URL(told, location.href), { cache: "no-store" });
  if (!answer.ok) return;
  const { users = [], systems = [] } = await answer.json();
  const choice = document.getElementById("sample");
  const groups = systems.map(({ name, title }) => [title, users.filter((each) => each.systems?.includes(name))]);
  for (const [label, known] of [["", users.filter((each) => !each.systems)], ...groups]) {
    const options = known.map(({ user, name, about, token }) => new Option(`${name ?? user}: ${about}`, token));
    if (options.length && label) choice.append(element("optgroup", { label }, ...options));
    else choice.append(...options);
  }
  const token = document.getElementById("token");
  choice.onchange = () => { token.value = choice.value; };
  token.oninput = () => { choice.value = ""; };
  document.getElementById("samples").hidden = users.length === 0;
}

function draw(api) {
  document.title = `${api.info.title} · API`;
  // Behind a way back of the same name, it would be said twice.
  document.getElementById("title").textContent = api.externalDocs?.description === api.info.title ? "API" : api.info.title;
  document.getElementById("about").textContent = api.info.description ?? "";
  showHome(api);
  // Mounted under a prefix, the page stands beside what it describes.
  const base = (api.servers?.[0]?.url ?? location.pathname.replace(/\/docs\/?$/, "")).replace(/\/$/, "");
  const groups = new Map();
  for (const [path, item] of Object.entries(api.paths)) {
    for (const method of METHODS.filter((each) => item[each])) {
      const group = item[method].tags?.[0] ?? "";
      if (!groups.has(group)) groups.set(group, []);
      groups.get(group).push(operationOf(api, base, path, method, item[method]));
    }
  }
  const main = document.getElementById("operations");
  for (const [group, operations] of groups) {
    if (group) main.append(element("h2", { textContent: group }));
    main.append(...operations);
  }
}

document.addEventListener("DOMContentLoaded", () => {
  wireTheme();
  const described = fetch("openapi.json").then((answer) => answer.json());
  // Without them, the page is as good for whoever has a token.
  described.then(offerSamples).catch(() => {});
  described.then(draw).catch((problem) => {
    document.getElementById("about").textContent = `openapi.json cannot be read: ${problem}`;
  });
});
