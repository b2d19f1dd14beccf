/** Small parts that the pages share. No framework: elements are created once and updated in place. */
export { arrange, renew } from "./arrange.js";
export { copyText } from "./clipboard.js";
export { element, find, type Child } from "./element.js";
export { markFresh } from "./fresh.js";
export { wireSkipLink } from "./skip.js";
export { toast } from "./toast.js";
export { wireThemeButton } from "./theme-button.js";
export { initialiseTheme, nextTheme, type Theme } from "./theme.js";
