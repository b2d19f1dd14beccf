/** What a development server tells about itself at `/sample.json`. Any other server has no such page. */

export interface SampleUser {
  readonly user: string;
  readonly about: string;
  readonly token: string;
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
}

/** `root`: the way from the page to the root of the site. Null where there is nothing to tell. */
export async function sampleOf(root: string): Promise<Sample | null> {
  try {
    const response = await fetch(new URL(`${root}sample.json`, document.baseURI), { cache: "no-store" });
    if (!response.ok) return null;
    const said = (await response.json()) as Partial<Sample>;
    return { users: said.users ?? [], systems: said.systems ?? [] };
  } catch {
    return null;
  }
}
