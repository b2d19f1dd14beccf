/** Whether the page is visible. A page in the background polls less often. */
export interface Visibility {
  visible(): boolean;
  /** Call back on every change; the result ends it. */
  watch(changed: (visible: boolean) => void): () => void;
}

const ALWAYS: Visibility = { visible: () => true, watch: () => () => {} };

/** The page's visibility; always visible in Node. */
export function pageVisibility(): Visibility {
  if (typeof document === "undefined") return ALWAYS;
  const page = document;
  return {
    visible: () => page.visibilityState === "visible",
    watch: (changed) => {
      const listener = (): void => changed(page.visibilityState === "visible");
      page.addEventListener("visibilitychange", listener);
      return () => page.removeEventListener("visibilitychange", listener);
    },
  };
}
