/** A new task, asked for in a dialog. */

import { element, find, toast } from "@aftercommit/ui";

import { ApiError } from "./api.js";
import { type Directory } from "./directory.js";
import { Labelled, notice, peopleField } from "./forms.js";
import { type NewTask, type Task } from "./model.js";

export interface CreateHooks {
  /** The same key makes the same task, however often it is sent. Throws an ApiError. */
  create(task: NewTask, key: string): Promise<Task>;
  /** It is there. `left`: the dialog was closed before, and perhaps is open for another one. */
  made(task: Task, left: boolean): void;
}

export class CreateDialog {
  readonly #dialog = find("create", HTMLDialogElement);
  #title = new Labelled(
    element("input", { class: "field", maxlength: 200, autocomplete: "off" }),
    "What is to be done",
  );
  #description = new Labelled(
    element("textarea", { class: "field", rows: 4, maxlength: 10_000 }),
    "Description (optional)",
  );
  #assignee: Labelled<HTMLSelectElement>;
  #said = element("div", {});
  #send = element("button", { class: "button main" }, "Create task");
  /** Which opening of the dialog this is: an answer may come when it is closed, or open for another task. */
  #round = 0;
  #key = { of: "", key: "" };

  constructor(
    readonly directory: Directory,
    readonly hooks: CreateHooks,
  ) {
    this.#assignee = new Labelled(peopleField(directory, "Nobody yet"), "Assign to");
  }

  open(): void {
    const { name } = this.directory.me;
    const cancel = element("button", { class: "button", type: "button" }, "Cancel");
    cancel.addEventListener("click", () => this.#dialog.close());
    this.#title.field.value = "";
    this.#description.field.value = "";
    this.#assignee.field.value = "";
    for (const each of [this.#title, this.#description, this.#assignee]) each.wrong("");
    this.#said.replaceChildren();
    this.#send.disabled = false;
    this.#round += 1;
    const form = element(
      "form",
      { novalidate: true },
      element("h2", { id: "create-title" }, "New task"),
      element(
        "p",
        { class: "soft" },
        `${name} creates it. The report is approved by ${name} or by somebody with a supervising role, never by the assignee.`,
      ),
      this.#said,
      this.#title.whole,
      this.#description.whole,
      this.#assignee.whole,
      this.#roles(),
      element("p", { class: "ends" }, cancel, this.#send),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      void this.#submit();
    });
    this.#dialog.replaceChildren(form);
    this.#dialog.showModal();
    this.#title.field.focus();
  }

  #roles(): HTMLElement {
    const boxes = this.directory.roles.map(({ role_id, name }) => {
      const box = element("input", { type: "checkbox", name: "role", value: role_id });
      return element("label", { class: "tick" }, box, name);
    });
    return element("fieldset", { class: "ticks" }, element("legend", {}, "Supervised by the roles"), ...boxes);
  }

  #task(): NewTask {
    const description = this.#description.text;
    const assignee = this.#assignee.text;
    const ticked = [...this.#dialog.querySelectorAll<HTMLInputElement>("input[name=role]:checked")];
    return {
      title: this.#title.text,
      ...(description !== "" && { description }),
      ...(assignee !== "" && { assignee_user_id: Number(assignee) }),
      ...(ticked.length > 0 && { supervisor_role_ids: ticked.map((box) => Number(box.value)) }),
    };
  }

  async #submit(): Promise<void> {
    if (this.#send.disabled || !this.#title.demand("Give it a title.")) return;
    const task = this.#task();
    if (!this.#isDecidable(task)) return;
    const round = this.#round;
    const isLeft = (): boolean => round !== this.#round || !this.#dialog.open;
    const content = JSON.stringify(task);
    this.#send.disabled = true;
    try {
      const made = await this.hooks.create(task, this.#keyFor(content));
      if (this.#key.of === content) this.#key = { of: "", key: "" };
      const left = isLeft();
      if (!left) this.#dialog.close();
      this.hooks.made(made, left);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (!isLeft()) this.#said.replaceChildren(notice(`Not created. ${error.message}`));
      else toast(`“${task.title}” was not created. ${error.message}`);
    } finally {
      if (!isLeft()) this.#send.disabled = false;
    }
  }

  /** Who works on a task never decides on the report: whoever gives it to themselves names somebody who does. */
  #isDecidable({ assignee_user_id: assignee, supervisor_role_ids: roles }: NewTask): boolean {
    const { me } = this.directory;
    if (assignee === undefined || this.directory.canBeDecided(me.user_id, roles ?? [], assignee)) return true;
    this.#said.replaceChildren(
      notice("Nobody could approve your own report. Choose a supervising role that somebody else has, or assign it to somebody else."),
    );
    this.#dialog.querySelector<HTMLInputElement>("input[name=role]")?.focus();
    return false;
  }

  /** What is sent again unchanged, because no answer came, is the same task; anything else is another one. */
  #keyFor(content: string): string {
    if (this.#key.of !== content) this.#key = { of: content, key: randomKey() };
    return this.#key.key;
  }
}

/** By hand, because `randomUUID` is missing on plain http other than localhost. */
function randomKey(): string {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
