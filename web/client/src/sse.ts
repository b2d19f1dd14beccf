/**
 * Decodes an event stream by the WHATWG rules, however the bytes are split into chunks.
 *
 * No IO and no clock. Besides events it returns what a browser's EventSource hides: an `id:` without data (how far the
 * server has searched for a filtered reader) and the server's `retry:`.
 */

export type SseSignal =
  | { readonly kind: "event"; readonly name: string; readonly data: string; readonly id: string }
  | { readonly kind: "place"; readonly id: string }
  | { readonly kind: "retry"; readonly milliseconds: number }
  /** A block is larger than the limit: not a feed, or an attack. Decoding stops. */
  | { readonly kind: "too_large" };

const DIGITS = /^[0-9]+$/;

export class SseDecoder {
  // TextDecoder drops a byte order mark at the beginning only.
  readonly #text = new TextDecoder("utf-8");
  #line = "";
  #lastWasCarriageReturn = false;
  #name = "";
  #data: string[] = [];
  #held = 0;
  #id = "";
  #sawId = false;
  #givenUp = false;
  #found: SseSignal[] = [];

  /** `most`: maximum number of characters per block. */
  constructor(readonly most = 1024 * 1024) {}

  /** The signals that these bytes complete, in order. A block counts only once an empty line has ended it. */
  push(bytes: Uint8Array): SseSignal[] {
    this.#found = [];
    let text = this.#text.decode(bytes, { stream: true });
    if (this.#lastWasCarriageReturn && text !== "") {
      this.#lastWasCarriageReturn = false;
      if (text.startsWith("\n")) text = text.slice(1);
    }
    if (!this.#givenUp) this.#take(text);
    return this.#found;
  }

  #take(text: string): void {
    const breaks = /\r\n|\n|\r/g;
    let start = 0;
    for (let found = breaks.exec(text); found !== null; found = breaks.exec(text)) {
      const line = this.#line + text.slice(start, found.index);
      if (this.#tooLarge(line)) return;
      this.#endLine(line);
      this.#line = "";
      start = breaks.lastIndex;
    }
    // A CR at the end of a chunk may be the first half of a CRLF.
    this.#lastWasCarriageReturn = start === text.length && text.endsWith("\r");
    this.#line += text.slice(start);
    this.#tooLarge(this.#line);
  }

  #tooLarge(line: string): boolean {
    if (this.#held + line.length <= this.most) return false;
    this.#givenUp = true;
    this.#found.push({ kind: "too_large" });
    return true;
  }

  #endLine(line: string): void {
    if (line === "") {
      this.#endBlock();
      return;
    }
    const colon = line.indexOf(":");
    if (colon === 0) return;
    const field = colon < 0 ? line : line.slice(0, colon);
    const after = colon < 0 ? "" : line.slice(colon + 1);
    this.#field(field, after.startsWith(" ") ? after.slice(1) : after);
  }

  #field(field: string, value: string): void {
    switch (field) {
      case "event":
        this.#name = value;
        break;
      case "data":
        this.#data.push(value);
        this.#held += value.length + 1;
        break;
      case "id":
        if (!value.includes("\0")) {
          this.#id = value;
          this.#sawId = true;
        }
        break;
      case "retry":
        if (DIGITS.test(value)) this.#found.push({ kind: "retry", milliseconds: Number(value) });
        break;
    }
  }

  #endBlock(): void {
    if (this.#data.length > 0) {
      const data = this.#data.join("\n");
      this.#found.push({ kind: "event", name: this.#name || "message", data, id: this.#id });
    } else if (this.#sawId) {
      this.#found.push({ kind: "place", id: this.#id });
    }
    this.#name = "";
    this.#data = [];
    this.#held = 0;
    this.#sawId = false;
  }
}
