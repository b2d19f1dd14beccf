/** The dialog that creates a task. */

import { element, find, toast } from "@aftercommit/ui";

import { ApiError } from "./api.js";
import { type Directory } from "./directory.js";
import { Labelled, notice, peopleField } from "./forms.js";
import { type NewTask, type Task } from "./model.js";

export interface CreateHooks {
  /** Requests with the same key create one task. Throws an ApiError. */
  create(task: NewTask, key: string): Promise<Task>;
  /** The task was created. `left`: the user has closed this dialog meanwhile, and may have opened it again. */
  made(task: Task, left: boolean): void;
}

export class CreateDialog {
  readonly #dialog = find("create", HTMLDialogElement);
  #title = new Labelled(
    element("input", { class: "field", maxlength: 200, autocomplete: "off" }),
    "Title",
  );
  #description = new Labelled(
    element("textarea", { class: "field", rows: 4, maxlength: 10_000 }),
    "Description (optional)",
  );
  #assignee: Labelled<HTMLSelectElement>;
  #said = element("div", {});
  #send = element("button", { class: "button main" }, "Create task");
  /** Counts how often the dialog was opened, so that a late answer is not taken for the current form's. */
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
        `You create it as ${name}. ${name} or anyone with a supervising role can approve the report, but never the assignee.`,
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
    return element("fieldset", { class: "ticks" }, element("legend", {}, "Supervising roles"), ...boxes);
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
    if (this.#send.disabled || !this.#title.demand("Enter a title.")) return;
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
      if (!isLeft()) this.#said.replaceChildren(notice(`Could not create the task. ${error.message}`));
      else toast(`“${task.title}” was not created. ${error.message}`);
    } finally {
      if (!isLeft()) this.#send.disabled = false;
    }
  }

  /** The assignee cannot approve their own report, so somebody else must be able to. */
  #isDecidable({ assignee_user_id: assignee, supervisor_role_ids: roles }: NewTask): boolean {
    const { me } = this.directory;
    if (assignee === undefined || this.directory.canBeDecided(me.user_id, roles ?? [], assignee)) return true;
    this.#said.replaceChildren(
      notice("You cannot approve your own report. Choose a supervising role that someone else has, or assign the task to someone else."),
    );
    this.#dialog.querySelector<HTMLInputElement>("input[name=role]")?.focus();
    return false;
  }

  /** The same content keeps its key, so that a retry creates no second task. */
  #keyFor(content: string): string {
    if (this.#key.of !== content) this.#key = { of: content, key: randomKey() };
    return this.#key.key;
  }
}

/** Not `randomUUID`: browsers offer it on https and localhost only. */
function randomKey(): string {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
