import assert from "node:assert/strict";
import { describe, test } from "node:test";

import { withExamples } from "../docs/examples.js";

describe("the description that Swagger UI gets", () => {
  test("has a word as the example of a text, where it fits the pattern", () => {
    const fits = { type: "string", pattern: "^[^\\u0000]+$" };
    assert.deepEqual(withExamples({ title: fits }), { title: { ...fits, examples: ["text"] } });
    const others = [
      { type: "string" },
      { type: "string", pattern: "^\\d+$" },
      { type: "string", pattern: "(?P<python>x)" },
      { ...fits, examples: ["INV-1"] },
      { ...fits, default: "" },
    ];
    assert.deepEqual(withExamples(others), others);
  });

  test("tells the examples of optional parameters and does not fill them in", () => {
    const schema = { type: "integer", minimum: 0 };
    const optional = { name: "after", in: "query", description: "Behind this.", example: 42, schema };
    assert.deepEqual(withExamples(optional), {
      name: "after",
      in: "query",
      description: "Behind this. Example: `42`.",
      schema,
    });
    const required = { name: "id", in: "path", required: true, example: "INV-1", schema: { type: "string" } };
    assert.deepEqual(withExamples(required), required);
    const scheme = { type: "apiKey", in: "header", name: "X-Key" };
    assert.deepEqual(withExamples(scheme), scheme);
  });
});
