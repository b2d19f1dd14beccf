/** Loaded first, so that a page is never painted in the wrong colours. */
import { initialiseTheme } from "./theme.js";

initialiseTheme();
