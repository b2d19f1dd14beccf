/** Loaded by a page before anything is painted, so that it never flashes in the wrong colours. */
import { initialiseTheme } from "./theme.js";

initialiseTheme();
