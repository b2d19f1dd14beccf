/** Whether the browser believes to have a network. It may be wrong either way, so it is a reason to look and no proof. */
export interface Network {
  /** Call back on every change; the result ends it. */
  watch(changed: (online: boolean) => void): () => void;
}

const NONE: Network = { watch: () => () => {} };

/** The page's own; where there is no page, nothing is ever told. */
export function pageNetwork(): Network {
  if (typeof window === "undefined") return NONE;
  const page = window;
  return {
    watch: (changed) => {
      const told = (event: Event): void => changed(event.type === "online");
      page.addEventListener("online", told);
      page.addEventListener("offline", told);
      return () => {
        page.removeEventListener("online", told);
        page.removeEventListener("offline", told);
      };
    },
  };
}
