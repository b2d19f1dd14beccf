/** Names for the user and role numbers in tasks and events. An unknown user is shown by number. */

import { type Person, type Role, type TaskEvent } from "./model.js";

export class Directory {
  readonly #names: Map<number, string>;
  readonly #roles: ReadonlyMap<number, Role>;

  constructor(
    readonly me: Person,
    readonly people: readonly Person[],
    readonly roles: readonly Role[],
  ) {
    this.#names = new Map(people.map(({ user_id, name }) => [user_id, name]));
    this.#roles = new Map(roles.map((role) => [role.role_id, role]));
  }

  /** Take names from an event: it may mention users beyond those that were loaded. */
  learn({ actor_user_id, payload }: TaskEvent): void {
    this.#learn(actor_user_id, payload["actor_name"]);
    this.#learn(payload["assignee_user_id"], payload["assignee_name"]);
  }

  #learn(user: unknown, name: unknown): void {
    if (typeof user === "number" && typeof name === "string" && !this.#names.has(user)) this.#names.set(user, name);
  }

  isMe(user: number | null): boolean {
    return user === this.me.user_id;
  }

  name(user: number | null): string {
    if (user === null) return "nobody";
    return this.#names.get(user) ?? `user ${user}`;
  }

  /** At the beginning of a sentence: "You" or a name. */
  subject(user: number): string {
    return this.isMe(user) ? "You" : this.name(user);
  }

  /** In a sentence: "you" or a name. */
  object(user: number | null): string {
    return this.isMe(user) ? "you" : this.name(user);
  }

  /** Whether the creator or a supervisor other than the assignee can decide on a report. */
  canBeDecided(creator: number, roles: readonly number[], assignee: number): boolean {
    return creator !== assignee || roles.some((role) => this.hasOther(role, assignee));
  }

  /** Whether somebody else has this role. */
  hasOther(role: number, user: number): boolean {
    return this.people.some(({ user_id, roles }) => user_id !== user && roles.some(({ role_id }) => role_id === role));
  }

  role(role: number): string {
    return this.#roles.get(role)?.name ?? `role ${role}`;
  }
}
