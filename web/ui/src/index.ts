/** Small parts that every page uses. No framework: elements are made once and told what changed. */
export { arrange, renew } from "./arrange.js";
export { copyText } from "./clipboard.js";
export { element, find, type Child } from "./element.js";
export { markFresh } from "./fresh.js";
export { wireSkipLink } from "./skip.js";
export { toast } from "./toast.js";
export { wireThemeButton } from "./theme-button.js";
export { initialiseTheme, nextTheme, type Theme } from "./theme.js";
