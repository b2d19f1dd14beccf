/** Small parts that every page uses. No framework: elements are made once and told what changed. */
export { copyText } from "./clipboard.js";
export { element, find, type Child } from "./element.js";
export { toast } from "./toast.js";
export { initialiseTheme, nextTheme, type Theme } from "./theme.js";
