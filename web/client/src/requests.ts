/** Builds request addresses, as `conformance/requests.yaml` defines them. Cursors are encoded, because they contain `#`. */

export type Filters = Readonly<Record<string, string | number | undefined>>;

export interface Names {
  readonly cursor: string;
  readonly limit: string;
  /** Default: `beforeCursor`. */
  readonly before?: string;
  /** Default: `fromTime`. */
  readonly fromTime?: string;
}

/** Set at most one of `cursor`, `before` and `fromTime`; without any, it is the newest page. */
export interface Question {
  readonly cursor?: string | null | undefined;
  readonly before?: string | null | undefined;
  readonly fromTime?: string | null | undefined;
  readonly limit?: number | null | undefined;
  readonly filters?: Filters | undefined;
}

/** The address of a page. */
export function pageAddress(address: URL, names: Names, question: Question): URL {
  const { cursor, before, fromTime, limit, filters } = question;
  return extended(address, {
    [names.cursor]: cursor ?? undefined,
    [names.before ?? "beforeCursor"]: before ?? undefined,
    [names.fromTime ?? "fromTime"]: fromTime ?? undefined,
    [names.limit]: limit ?? undefined,
    ...filters,
  });
}

/** The address of the stream: its own, or the feed's plus `/stream`. The cursor is sent as `Last-Event-ID`. */
export function streamAddress(address: URL, stream: URL | null, names: Names, { limit, filters }: Question): URL {
  const base = new URL(stream ?? address);
  if (!stream) base.pathname = `${base.pathname.replace(/\/$/, "")}/stream`;
  return extended(base, { [names.limit]: limit ?? undefined, ...filters });
}

/** Leaves out empty values. Not URLSearchParams, which encodes a space as `+`. */
function extended(address: URL, parameters: Filters): URL {
  const result = new URL(address);
  result.hash = "";
  const added = Object.entries(parameters)
    .filter(([, value]) => value !== undefined && value !== "")
    .map(([name, value]) => `${encodeURIComponent(name)}=${encodeURIComponent(String(value))}`);
  result.search = [result.search.replace(/^\?/, ""), ...added].filter((part) => part !== "").join("&");
  return result;
}
