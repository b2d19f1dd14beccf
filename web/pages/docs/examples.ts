/** The description, changed so that Swagger UI begins with requests that people would send. Pure. */

const WORD = "text";

type Part = Readonly<Record<string, unknown>>;

export function withExamples(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(withExamples);
  if (value === null || typeof value !== "object") return value;
  const made = Object.fromEntries(Object.entries(value).map(([key, held]) => [key, withExamples(held)]));
  if (takesWord(made)) return { ...made, examples: [WORD] };
  return made["in"] && made["schema"] && made["required"] !== true ? withoutExample(made) : made;
}

/** For a text with a pattern Swagger UI makes up random characters that fit. A word is easier to read, where it fits. */
function takesWord({ type, pattern, example, examples, default: given }: Part): boolean {
  if (type !== "string" || typeof pattern !== "string") return false;
  if (example !== undefined || examples !== undefined || given !== undefined) return false;
  try {
    return new RegExp(pattern, "u").test(WORD);
  } catch {
    return false; // A pattern of another dialect.
  }
}

/** Swagger UI fills in the examples of optional parameters, and would send a cursor that nobody has chosen. */
function withoutExample({ example, examples: _examples, ...parameter }: Part): Part {
  const { example: inner, examples: words, ...schema } = parameter["schema"] as Part;
  const first = example ?? inner ?? (Array.isArray(words) && words[0] !== WORD ? (words[0] as unknown) : undefined);
  const note = first === undefined ? "" : ` Example: \`${String(first)}\`.`;
  return { ...parameter, schema, description: `${String(parameter["description"] ?? "")}${note}` };
}
