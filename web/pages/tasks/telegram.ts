/** Connect a Telegram chat: a one-time code that is written to the bot before it expires. */

import { copyText, element, find, toast, type Child } from "@aftercommit/ui";

import { ApiError } from "./api.js";
import { notice } from "./forms.js";
import { type LinkCode } from "./model.js";
import { countdown } from "./times.js";

export interface TelegramHooks {
  /** Who connects. */
  readonly name: string;
  code(): Promise<LinkCode>;
  /** Where the local chats are shown, if there are any. */
  chats(): Promise<string | null>;
}

export class TelegramDialog {
  readonly #dialog = find("telegram", HTMLDialogElement);
  readonly #body = element("div", { class: "telegram" });
  #ticking: ReturnType<typeof setInterval> | undefined;
  /** Which question for a code is the last one: the answer to an earlier one counts no more. */
  #asked = 0;

  constructor(readonly hooks: TelegramHooks) {
    const close = element("button", { class: "button", autofocus: true }, "Close");
    this.#dialog.replaceChildren(
      element("h2", { id: "telegram-title" }, "Connect Telegram"),
      element("p", { class: "soft" }, "Whatever you hear of here, the bot then writes to your chat as well."),
      this.#body,
      element("form", { method: "dialog", class: "ends" }, close),
    );
    this.#dialog.addEventListener("close", () => clearInterval(this.#ticking));
  }

  open(): void {
    this.#dialog.showModal();
    void this.#ask();
  }

  async #ask(): Promise<void> {
    const asked = (this.#asked += 1);
    clearInterval(this.#ticking);
    this.#body.replaceChildren(element("p", { class: "soft" }, "Asking for a code …"));
    const isLeft = (): boolean => asked !== this.#asked || !this.#dialog.open;
    try {
      const [code, chats] = await Promise.all([this.hooks.code(), this.hooks.chats()]);
      if (!isLeft()) this.#show(code, chats);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (isLeft()) return;
      this.#body.replaceChildren(notice(`There is no code now. ${error.message}`), this.#again("Try again"));
    }
  }

  #show(code: LinkCode, chats: string | null): void {
    const copy = element("button", { class: "button main", type: "button" }, "Copy");
    copy.addEventListener("click", () => {
      void copyText(code.start).then((done) => toast(done ? "Copied" : "The browser does not allow copying"));
    });
    const left = element("p", { class: "soft", role: "timer" });
    const where = chats ? this.#local(chats, code.code) : ["Open your chat with the bot and write:"];
    this.#body.replaceChildren(
      element("p", {}, ...where),
      element("p", { class: "code" }, element("code", { id: "start" }, code.start), copy),
      left,
    );
    this.#count(left, Date.now() + code.lifetime);
  }

  /** The page with the local chats opens that of this person, and has the words ready. */
  #local(chats: string, code: string): readonly Child[] {
    const query = new URLSearchParams({ start: code, as: this.hooks.name });
    const href = new URL(`?${query}`, chats).href;
    const link = element("a", { href, target: "_blank", rel: "noopener" }, "your local chat");
    return ["Open ", link, " with the bot and send what stands ready there:"];
  }

  #count(left: HTMLElement, until: number): void {
    const write = (): void => {
      const said = countdown(until, Date.now());
      if (said === null) this.#expired();
      else left.textContent = `It works once, and for another ${said}.`;
    };
    this.#ticking = setInterval(write, 1000);
    write();
  }

  #expired(): void {
    clearInterval(this.#ticking);
    const said = element("p", { role: "status" }, "The code has expired; it works no more.");
    this.#body.replaceChildren(said, this.#again("Get a new code"));
  }

  #again(text: string): HTMLElement {
    const button = element("button", { class: "button main", type: "button" }, text);
    button.addEventListener("click", () => void this.#ask());
    return element("p", {}, button);
  }
}
