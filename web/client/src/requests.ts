/** Which address is asked. `conformance/requests.yaml` fixes it. Cursors are encoded: `#` would end an address. */

export type Filters = Readonly<Record<string, string | number | undefined>>;

export interface Names {
  readonly cursor: string;
  readonly limit: string;
  /** By default `beforeCursor`. */
  readonly before?: string;
  /** By default `fromTime`. */
  readonly fromTime?: string;
}

/** At most one of `cursor`, `before` and `fromTime` says where; without any it is the newest. */
export interface Question {
  readonly cursor?: string | null | undefined;
  readonly before?: string | null | undefined;
  readonly fromTime?: string | null | undefined;
  readonly limit?: number | null | undefined;
  readonly filters?: Filters | undefined;
}

/** Where a page is asked for. */
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

/** Where the stream is: its own address, or the feed's with `/stream`. The cursor travels in `Last-Event-ID`. */
export function streamAddress(address: URL, stream: URL | null, names: Names, { limit, filters }: Question): URL {
  const base = new URL(stream ?? address);
  if (!stream) base.pathname = `${base.pathname.replace(/\/$/, "")}/stream`;
  return extended(base, { [names.limit]: limit ?? undefined, ...filters });
}

/** What is empty is not sent. Written by hand, because URLSearchParams writes a blank as `+`. */
function extended(address: URL, parameters: Filters): URL {
  const result = new URL(address);
  result.hash = "";
  const added = Object.entries(parameters)
    .filter(([, value]) => value !== undefined && value !== "")
    .map(([name, value]) => `${encodeURIComponent(name)}=${encodeURIComponent(String(value))}`);
  result.search = [result.search.replace(/^\?/, ""), ...added].filter((part) => part !== "").join("&");
  return result;
}
