/** The types of the task tracker's HTTP API. */

export type State = "new" | "assigned" | "reported" | "rejected" | "approved" | "cancelled";
export type Action = "assign" | "reassign" | "submit_report" | "approve" | "reject" | "reopen" | "cancel";

export interface Task {
  readonly task_id: number;
  readonly title: string;
  readonly description: string;
  readonly state: State;
  readonly creator_user_id: number;
  readonly assignee_user_id: number | null;
  readonly supervisor_role_ids: readonly number[];
  readonly report: string | null;
  readonly created_at: string;
  readonly updated_at: string;
  /** The actions that the caller can take now. */
  readonly actions: readonly Action[];
  /** Grows with every change. */
  readonly version: number;
}

/** One step of a task's life. */
export interface Entry {
  readonly version: number;
  readonly action: string;
  readonly from_state: string | null;
  readonly to_state: string;
  readonly actor_user_id: number;
  readonly actor_role_id: number | null;
  readonly assignee_user_id: number | null;
  readonly note: string | null;
  readonly at: string;
  readonly event_id: string;
}

/** An event in a user's feed. */
export interface TaskEvent {
  readonly event_id: number;
  readonly task_id: number;
  readonly event_type: string;
  readonly actor_user_id: number;
  readonly actor_role_id: number | null;
  readonly created_at: string;
  readonly payload: Readonly<Record<string, unknown>>;
}

/** An event that the server cannot show. */
export interface WithheldEvent {
  readonly event_id: number;
  readonly withheld: string;
}

export interface Role {
  readonly role_id: number;
  readonly name: string;
}

export interface Person {
  readonly user_id: number;
  readonly name: string;
  readonly roles: readonly Role[];
}

/** A row of the state machine. `from_states` and `by` are empty for the action that creates a task. */
export interface Rule {
  readonly action: string;
  readonly from_states: readonly string[];
  readonly to_state: string;
  /** Where it leads when nobody is assigned. */
  readonly to_state_unassigned: string;
  readonly by: readonly string[];
  readonly never_by: readonly string[];
  readonly event_type: string;
}

export interface Machine {
  readonly states: readonly string[];
  readonly actions: readonly Rule[];
  readonly routing: readonly { readonly event_type: string; readonly hears: readonly string[] }[];
}

export interface TaskPage {
  readonly tasks: readonly Task[];
  readonly next_before: number | null;
}

export interface NewTask {
  readonly title: string;
  readonly description?: string;
  readonly assignee_user_id?: number;
  readonly supervisor_role_ids?: readonly number[];
}

export interface LinkCode {
  readonly code: string;
  readonly expires_at: string;
  /** Milliseconds for which it works, by the server's clock. */
  readonly lifetime: number;
  /** The message to send to the bot. */
  readonly start: string;
}
