/** The actions that the user can take on a task now: one button each, and a form for its input. */

import { element, toast } from "@aftercommit/ui";

import { ApiError, type Fields } from "./api.js";
import { type Directory } from "./directory.js";
import { Labelled, notice, peopleField, type Input } from "./forms.js";
import { type Action, type Task } from "./model.js";
import { deed, ASKS, inOrder, isForward, label } from "./words.js";

/** Sends the action; throws an ApiError. The changed task reaches the panel through `update`. */
export type Act = (action: Action, fields: Fields) => Promise<void>;

interface Open {
  readonly action: Action;
  readonly form: HTMLFormElement;
  readonly input: Labelled<Input>;
  readonly send: HTMLButtonElement;
}

export class ActionPanel {
  readonly whole = element("section", { class: "actions", "aria-label": "Actions", tabindex: -1 });
  readonly #buttons = element("div", { class: "buttons" });
  readonly #place = element("div", {});
  readonly #said = element("div", {});
  #task: Task;
  #open: Open | null = null;

  constructor(
    task: Task,
    readonly directory: Directory,
    readonly act: Act,
  ) {
    this.#task = task;
    this.whole.append(this.#said, this.#buttons, this.#place);
    this.#drawButtons();
  }

  /** Show a changed task. The user's unsent text stays, even when it cannot be sent any more. */
  update(task: Task): void {
    const before = this.#task;
    this.#task = task;
    if (before.actions.join() !== task.actions.join()) this.#drawButtons();
    this.#check();
  }

  /** Show a message about the last attempt. */
  say(text: string): void {
    this.#said.replaceChildren(...(text === "" ? [] : [notice(text)]));
  }

  /** Check that the open form can still be sent. While a request runs, its answer decides. */
  #check(): void {
    const open = this.#open;
    if (open && !open.send.disabled && !this.#task.actions.includes(open.action)) this.#outdate(open);
  }

  get isOpen(): boolean {
    return this.#open !== null;
  }

  close(): void {
    const action = this.#open?.action;
    this.#open = null;
    this.#place.replaceChildren();
    this.#drawButtons();
    (this.#button(action) ?? this.#buttons.querySelector("button") ?? this.whole).focus();
  }

  #drawButtons(): void {
    const offered = inOrder(this.#task.actions);
    const buttons = offered.map((action, place) => {
      const main = place === 0 && isForward(action) ? " main" : "";
      const expanded = this.#open?.action === action;
      const attributes = { class: `button${expanded ? "" : main}`, type: "button", "data-action": action };
      const button = element("button", { ...attributes, "aria-expanded": String(expanded) }, deed(action));
      button.addEventListener("click", () => (this.#open?.action === action ? this.close() : this.#begin(action)));
      return button;
    });
    const focused =
      document.activeElement instanceof HTMLElement ? document.activeElement.dataset["action"] : undefined;
    const nothing = element("p", { class: "soft" }, "You have nothing to do here right now.");
    this.#buttons.replaceChildren(...(buttons.length > 0 ? buttons : this.#open ? [] : [nothing]));
    if (focused) this.#button(focused)?.focus();
  }

  #button(action: string | undefined): HTMLElement | undefined {
    return [...this.#buttons.querySelectorAll("button")].find((button) => button.dataset["action"] === action);
  }

  #begin(action: Action): void {
    this.say("");
    const asks = ASKS[action];
    const input = new Labelled<Input>(this.#field(action), asks.label);
    const send = element("button", { class: "button main" }, deed(action));
    const cancel = element("button", { class: "button", type: "button" }, "Not now");
    cancel.addEventListener("click", () => this.close());
    const ends = element("p", { class: "ends" }, cancel, send);
    const form = element("form", { class: "action-form", novalidate: true }, input.whole, ends);
    const open = { action, form, input, send };
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      void this.#submit(open);
    });
    this.#open = open;
    this.#place.replaceChildren(form);
    this.#drawButtons();
    input.field.focus();
  }

  #field(action: Action): Input {
    if (ASKS[action].field === "assignee_user_id") {
      return peopleField(this.directory, "Choose a person", this.#task.assignee_user_id);
    }
    const rows = action === "submit_report" ? 6 : 3;
    return element("textarea", { class: "field", rows, maxlength: ASKS[action].longest });
  }

  async #submit(open: Open): Promise<void> {
    const { field, required } = ASKS[open.action];
    const missing =
      field === "assignee_user_id" ? "Choose a person." : "Write a few words. They are kept with the task.";
    if (open.send.disabled || (required && !open.input.demand(missing))) return;
    const text = open.input.text;
    const fields: Fields = text === "" ? {} : { [field]: field === "assignee_user_id" ? Number(text) : text };
    open.send.disabled = true;
    open.send.textContent = "Sending …";
    try {
      await this.act(open.action, fields);
      if (this.#open === open) this.close();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.#failed(open, error);
    }
  }

  /** Show an error and keep the text in the form. If the user has left the form, show a toast instead. */
  #failed(open: Open, error: ApiError): void {
    if (this.#open !== open || !this.whole.isConnected) {
      toast(`${deed(open.action)} failed. ${error.message}`);
      return;
    }
    open.send.disabled = false;
    open.send.textContent = deed(open.action);
    if (error.status === 400 || error.status === 422) {
      open.input.wrong(error.message);
      open.input.field.focus();
    } else if (error.status === 403 || error.status === 404 || error.status === 409) {
      if (open.input.text === "" || open.input.field instanceof HTMLSelectElement) this.close();
      this.say(`The action failed. ${error.message}`);
    } else {
      this.say(`Could not send this. ${error.message} Your text is still here.`);
    }
    this.#check();
  }

  /** Someone else was faster: the text can still be copied, but not sent. */
  #outdate({ action, form, input, send }: Open): void {
    if (!send.isConnected) return;
    const said = `“${deed(action)}” is no longer possible: the task is ${label(this.#task.state).toLowerCase()} now.`;
    if (input.field instanceof HTMLSelectElement) input.field.disabled = true;
    else input.field.readOnly = true;
    send.remove();
    form.prepend(notice(said));
    const close = form.querySelector("button");
    if (close) close.textContent = "Close";
    this.#drawButtons();
  }
}
