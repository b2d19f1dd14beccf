/** Whether the browser reports a network. It may be wrong, so this only triggers a check. */
export interface Network {
  /** Call back on every change; the result ends it. */
  watch(changed: (online: boolean) => void): () => void;
}

const NONE: Network = { watch: () => () => {} };

/** The network state of the page; in Node it never changes. */
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
