/**
 * Builds the pages, or with --tests the tests for Node. `tools/web.py` calls it.
 *
 *   node build.mjs OUT          pages and their assets; asset names contain a hash, so they can be cached forever
 *   node build.mjs --docs OUT   the page at `/docs`, which is part of the Python package
 *   node build.mjs --tests OUT  one file per test
 */

import { createHash } from "node:crypto";
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { basename, dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));

const shared = {
  absWorkingDir: here,
  bundle: true,
  logLevel: "warning",
  charset: "utf8",
  alias: {
    "@aftercommit/client": "./client/src/index.ts",
    "@aftercommit/ui": "./ui/src/index.ts",
    "@aftercommit/ui/style.css": "./ui/style.css",
  },
};

const common = { theme: "ui/src/theme-first.ts", icon: "ui/icon.svg" };
const board = { ...common, script: "pages/tasks/main.ts", style: "pages/tasks/style.css" };

/** A page: its source, its output file, the relative path to the site's root, and the files for its placeholders. A page
 * with addresses of different depths is built once for each. */
const pages = [
  {
    html: "pages/index/index.html",
    root: "",
    parts: { ...common, script: "pages/index/main.ts", style: "pages/index/style.css" },
  },
  // Shown at any address that is unknown or for API clients only, so the server fills in the path to the root.
  ...["missing", "programs"].map((name) => ({
    html: `pages/index/${name}.html`,
    root: "{root}",
    parts: { ...common, style: "pages/index/style.css" },
  })),
  {
    html: "pages/logs/investigation.html",
    root: "../",
    parts: { ...common, script: "pages/logs/main.ts", style: "pages/logs/style.css" },
  },
  { html: "pages/tasks/tasks.html", root: "../", parts: board },
  { html: "pages/tasks/tasks.html", out: "task.html", root: "../../", parts: board },
];

async function buildPages(out) {
  rmSync(out, { recursive: true, force: true });
  mkdirSync(join(out, "assets"), { recursive: true });
  const named = new Map();
  for (const { html, out: file, root, parts } of pages) {
    let text = readFileSync(join(here, html), "utf-8").replaceAll("{{root}}", root);
    for (const [place, source] of Object.entries(parts)) {
      if (!named.has(source)) named.set(source, await asset(source, join(out, "assets")));
      text = text.replaceAll(`{{${place}}}`, named.get(source));
    }
    const left = /\{\{\w+\}\}/.exec(text);
    if (left) throw new Error(`${html} has an unknown placeholder: ${left[0]}.`);
    writeFileSync(join(out, file ?? basename(html)), text);
  }
}

/** `/docs` has fixed addresses, with a hash behind the question mark. Swagger UI's licences go with its code. */
async function buildDocs(out) {
  rmSync(out, { recursive: true, force: true });
  mkdirSync(out, { recursive: true });
  const parts = {
    theme: ["docs-theme.js", common.theme],
    style: ["docs.css", "pages/docs/style.css"],
    script: ["docs.js", "pages/docs/main.ts"],
  };
  let page = readFileSync(join(here, "pages/docs/docs.html"), "utf-8");
  for (const [place, [name, source]] of Object.entries(parts)) {
    const content = await bundled(source);
    writeFileSync(join(out, name), content);
    page = page.replaceAll(`{{${place}}}`, hashOf(content));
  }
  writeFileSync(join(out, "docs.html"), page);
  const licences = ["LICENSE", "NOTICE", "swagger-ui-es-bundle.js.LICENSE.txt"];
  const texts = licences.map((name) => readFileSync(join(here, "node_modules/swagger-ui-dist", name), "utf-8"));
  writeFileSync(join(out, "LICENSES.txt"), `docs.js and docs.css contain Swagger UI.\n\n${texts.join("\n\n")}`);
}

/** Bundle one file; its name contains a hash of its content. */
async function asset(source, folder) {
  const extension = /\.ts$/.test(source) ? "js" : source.split(".").at(-1);
  const content = extension === "svg" ? readFileSync(join(here, source)) : await bundled(source);
  const stem =
    basename(dirname(source)) === "src" ? basename(source).replace(/\.\w+$/, "") : `${basename(dirname(source))}`;
  const name = `${stem}-${hashOf(content)}.${extension}`;
  writeFileSync(join(folder, name), content);
  return name;
}

function hashOf(content) {
  return createHash("sha256").update(content).digest("hex").slice(0, 10);
}

async function bundled(source) {
  const result = await build({
    ...shared,
    entryPoints: [source],
    write: false,
    minify: true,
    target: ["es2022", "chrome116", "firefox124", "safari17.4"],
    // Scripts that are no modules: one runs before the page is painted, one is given with `defer`.
    format: /theme-first|pages\/docs/.test(source) ? "iife" : "esm",
  });
  return result.outputFiles[0].contents;
}

async function buildTests(out) {
  rmSync(out, { recursive: true, force: true });
  const folders = ["client/test", "pages/test"];
  const tests = folders.flatMap((folder) =>
    readdirSync(join(here, folder))
      .filter((name) => name.endsWith(".test.ts") || name === "program.ts")
      .map((name) => join(folder, name)),
  );
  await build({
    ...shared,
    entryPoints: tests,
    outdir: out,
    outbase: here,
    outExtension: { ".js": ".mjs" },
    platform: "node",
    format: "esm",
    target: "node20",
    sourcemap: "inline",
  });
}

const [first, second] = process.argv.slice(2);
if (first === "--tests" && second) await buildTests(resolve(second));
else if (first === "--docs" && second) await buildDocs(resolve(second));
else if (first && !first.startsWith("-")) await buildPages(resolve(first));
else {
  console.error("usage: node build.mjs [--docs | --tests] OUT");
  process.exit(2);
}
