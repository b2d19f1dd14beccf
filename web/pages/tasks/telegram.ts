/** Connect a Telegram chat with a one-time code that the user sends to the bot. */

import { copyText, element, find, toast, type Child } from "@aftercommit/ui";

import { ApiError } from "./api.js";
import { notice } from "./forms.js";
import { type LinkCode } from "./model.js";
import { countdown } from "./times.js";

export interface TelegramHooks {
  /** Name of the user who connects. */
  readonly name: string;
  code(): Promise<LinkCode>;
  /** Address of the page with the local chats, if there is one. */
  chats(): Promise<string | null>;
}

export class TelegramDialog {
  readonly #dialog = find("telegram", HTMLDialogElement);
  readonly #body = element("div", { class: "telegram" });
  #ticking: ReturnType<typeof setInterval> | undefined;
  /** Number of the latest request for a code; answers to earlier requests are ignored. */
  #asked = 0;

  constructor(readonly hooks: TelegramHooks) {
    const close = element("button", { class: "button", autofocus: true }, "Close");
    this.#dialog.replaceChildren(
      element("h2", { id: "telegram-title" }, "Connect Telegram"),
      element("p", { class: "soft" }, "The bot then sends your activity to your Telegram chat, too."),
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
    this.#body.replaceChildren(element("p", { class: "soft" }, "Requesting a code …"));
    const isLeft = (): boolean => asked !== this.#asked || !this.#dialog.open;
    try {
      const [code, chats] = await Promise.all([this.hooks.code(), this.hooks.chats()]);
      if (!isLeft()) this.#show(code, chats);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (isLeft()) return;
      this.#body.replaceChildren(notice(`Could not get a code. ${error.message}`), this.#again("Try again"));
    }
  }

  #show(code: LinkCode, chats: string | null): void {
    const copy = element("button", { class: "button main", type: "button" }, "Copy");
    copy.addEventListener("click", () => {
      void copyText(code.start).then((done) => toast(done ? "Copied" : "Your browser does not allow copying"));
    });
    const left = element("p", { class: "soft", role: "timer" });
    const where = chats ? this.#local(chats, code.code) : ["Open your chat with the bot and send:"];
    this.#body.replaceChildren(
      element("p", {}, ...where),
      element("p", { class: "code" }, element("code", { id: "start" }, code.start), copy),
      left,
    );
    this.#count(left, Date.now() + code.lifetime);
  }

  /** Link to this user's local chat, with the message filled in. */
  #local(chats: string, code: string): readonly Child[] {
    const query = new URLSearchParams({ start: code, as: this.hooks.name });
    const href = new URL(`?${query}`, chats).href;
    const link = element("a", { href, target: "_blank", rel: "noopener" }, "your local chat");
    return ["Open ", link, " with the bot. This message is already filled in; send it:"];
  }

  #count(left: HTMLElement, until: number): void {
    const write = (): void => {
      const said = countdown(until, Date.now());
      if (said === null) this.#expired();
      else left.textContent = `This code works once and expires in ${said}.`;
    };
    this.#ticking = setInterval(write, 1000);
    write();
  }

  #expired(): void {
    clearInterval(this.#ticking);
    const said = element("p", { role: "status" }, "The code has expired.");
    this.#body.replaceChildren(said, this.#again("Get a new code"));
  }

  #again(text: string): HTMLElement {
    const button = element("button", { class: "button main", type: "button" }, text);
    button.addEventListener("click", () => void this.#ask());
    return element("p", {}, button);
  }
}
