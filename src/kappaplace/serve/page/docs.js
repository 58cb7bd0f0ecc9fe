// The API as a page: openapi.json in tables and examples. Nothing is loaded from elsewhere.

import { h } from "./dom.js";
import { loading, problem } from "./states.js";

const main = document.getElementById("main");
const text = (words) => (words ?? "").split(/`([^`]+)`/).map((part, i) => (i % 2 ? h("code", {}, part) : part));
const anchor = (method, path) => `${method}${path}`.replace(/\W+/g, "-").replace(/-$/, "");
const block = (value) => h("pre", { tabindex: "0" }, h("code", {}, typeof value === "string" ? value : JSON.stringify(value, null, 1)));

function typeOf(schema, document) {
  if (!schema) return "";
  if (schema.$ref) return typeOf(shapeOf(schema, document), document) || schema.$ref.split("/").pop();
  if (schema.anyOf) return schema.anyOf.map((each) => typeOf(each, document)).filter((each) => each !== "null").join(" or ");
  if (schema.enum) return schema.enum.join(" | ");
  if (schema.const) return schema.const;
  if (schema.type === "array") return `list of ${typeOf(schema.items, document) || "values"}`;
  return schema.type ?? "";
}

const shapeOf = (schema, document) => (schema?.$ref ? document.components.schemas[schema.$ref.split("/").pop()] : schema);

function table(header, rows) {
  if (!rows.length) return null;
  return h("div", { class: "scroll", tabindex: "0" }, h("table", {}, h("thead", {}, h("tr", {}, header.map((word) => h("th", { scope: "col" }, word)))), h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell) => h("td", {}, cell)))))));
}

function curl(method, path, way) {
  const url = `${location.origin}${path.replace("{name}", "town").replace(/\{\w+\}/g, "0")}`;
  const content = way.requestBody?.content ?? {};
  const form = content["multipart/form-data"] ? " -F image=@query.jpg" : "";
  const json = !form && content["application/json"] ? ` -H 'Content-Type: application/json' -d '{"answer": "…", "label": "right"}'` : "";
  const token = way.security ? ' -H "Authorization: Bearer $TOKEN"' : "";
  return `curl${method === "get" ? "" : ` -X ${method.toUpperCase()}`}${token}${form}${json} '${url}'`;
}

function operation(method, path, way, document, aliases) {
  const parameters = (way.parameters ?? []).map((each) => [h("code", {}, each.name), each.in, typeOf(each.schema, document), text(each.description)]);
  const body = shapeOf(way.requestBody?.content?.["multipart/form-data"]?.schema ?? way.requestBody?.content?.["application/json"]?.schema, document);
  const fields = Object.entries(body?.properties ?? {}).map(([name, schema]) => [h("code", {}, name), "body", typeOf(schema, document), text(schema.description ?? schema.anyOf?.find((each) => each.description)?.description)]);
  const answers = Object.entries(way.responses);
  const good = answers.find(([status]) => status < 400);
  const content = Object.entries(good[1].content ?? {});
  const example = content.map(([, part]) => shapeOf(part.schema, document)?.examples?.[0]).find(Boolean);
  return h(
    "article",
    { class: "panel operation", id: anchor(method, path) },
    h("h3", {}, h("span", { class: `method ${method}` }, method.toUpperCase()), " ", h("code", {}, path)),
    aliases.length ? h("p", { class: "muted small" }, "also ", aliases.map((each) => h("code", {}, each))) : null,
    h("p", {}, ...text(way.description)),
    table(["name", "in", "type", "meaning"], [...parameters, ...fields]),
    h("details", {}, h("summary", {}, "Request"), block(curl(method, path, way)), way.requestBody?.content?.["application/json"]?.example ? block(way.requestBody.content["application/json"].example) : null),
    h("details", {}, h("summary", {}, `Answer ${good[0]} (${content.map(([kind]) => kind).join(", ") || "empty"})`), example ? block(example) : null),
    h("p", { class: "muted small" }, "Errors: ", answers.filter(([status]) => status >= 400).map(([status]) => status).join(", ") || "none"),
  );
}

function page(document) {
  const named = /^\/v1\/maps\/\{name\}/;
  const groups = new Map();
  const all = Object.entries(document.paths).flatMap(([path, ways]) => Object.entries(ways).map(([method, way]) => ({ path, method, way })));
  const same = ({ method, way }) => all.filter((other) => named.test(other.path) && other.method === method && other.way.summary === way.summary).map((other) => other.path);
  for (const each of all.filter(({ path }) => !named.test(path))) {
    const tag = each.way.tags?.[0] ?? "other";
    groups.set(tag, [...(groups.get(tag) ?? []), each]);
  }
  const errors = Object.entries(document["x-error-codes"]).map(([code, words]) => [h("code", { id: code }, code), words]);
  return [
    h("h1", {}, "API"),
    h("p", { class: "lead" }, ...text(document.info.description)),
    h("p", {}, `Version ${document.info.version}. For programs: `, h("a", { href: "/openapi.json" }, "/openapi.json")),
    h("ul", { class: "toc" }, [...groups.values()].flat().map(({ method, path, way }) => h("li", {}, h("a", { href: `#${anchor(method, path)}` }, way.summary)))),
    ...[...groups].flatMap(([tag, list]) => [h("h2", {}, tag), ...list.map((each) => operation(each.method, each.path, each.way, document, same(each)))]),
    h("h2", {}, "errors"),
    h("section", { class: "panel" }, h("p", {}, "The body of an error is a problem description (RFC 9457). Its code does not change between versions:"), table(["code", "meaning"], errors), block(document.components.schemas.ProblemOut.examples[0])),
  ];
}

async function start() {
  main.replaceChildren(loading("Reading the description…"));
  try {
    const document = await (await fetch("/openapi.json")).json();
    main.replaceChildren(...page(document));
    if (location.hash) window.document.getElementById(location.hash.slice(1))?.scrollIntoView();
  } catch {
    main.replaceChildren(problem(new Error("The description of the API cannot be read."), start));
  }
}

start();
