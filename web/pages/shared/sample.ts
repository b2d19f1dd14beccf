/** The sample users and systems that a development server lists at `/sample.json`. */

export interface SampleUser {
  readonly user: string;
  /** Display name, if it differs from the user. */
  readonly name?: string;
  readonly about: string;
  readonly token: string;
  /** Systems that know this user; by default all. */
  readonly systems?: readonly string[];
}

export interface SampleLink {
  readonly href: string;
  readonly label: string;
}

export interface SampleSystem {
  readonly name: string;
  readonly title: string;
  readonly about: string;
  readonly links: readonly SampleLink[];
}

export interface Sample {
  readonly users: readonly SampleUser[];
  readonly systems: readonly SampleSystem[];
  /** The page with the chats of the local Bot API, where one runs. */
  readonly chats: string | null;
}

/** Null when the server has no sample. */
export async function sampleOf(root: URL): Promise<Sample | null> {
  try {
    const response = await fetch(new URL("sample.json", root), { cache: "no-store" });
    if (!response.ok) return null;
    const said = (await response.json()) as Partial<Sample>;
    return { users: said.users ?? [], systems: said.systems ?? [], chats: said.chats ?? null };
  } catch {
    return null;
  }
}

/** The users that a system knows. */
export function usersOf(sample: Sample | null, system: string): readonly SampleUser[] {
  return (sample?.users ?? []).filter(({ systems }) => systems === undefined || systems.includes(system));
}
