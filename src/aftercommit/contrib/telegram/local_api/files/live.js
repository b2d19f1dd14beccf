// The stream of changes, and a check for silence: a server that hangs or is out of reach reports no error.

import { find, UNREACHABLE } from "./parts.js";

// Seconds. The server sends a heartbeat every five; one may be late or lost.
const SILENCE = 11;
const RETRY = 2;

/** Follow an address; `hears` has a function for each event name. */
export function follow(address, hears) {
  const state = { stream: null, heard: null, isLive: false, since: Date.now() };
  const open = () => {
    state.stream?.close();
    state.since = Date.now();
    state.stream = new EventSource(address);
    for (const [name, hear] of Object.entries({ ...hears, heartbeat: () => {} })) {
      state.stream.addEventListener(name, (event) => {
        hear(JSON.parse(event.data));
        state.heard = state.since = Date.now();
        state.isLive = true;
        show(state);
      });
    }
    state.stream.addEventListener("error", () => lose(state));
  };
  const look = () => {
    const silent = (Date.now() - state.since) / 1000;
    // A browser does not reopen a stream that it has closed.
    if (silent > SILENCE || (state.stream.readyState === EventSource.CLOSED && silent > RETRY)) {
      lose(state);
      open();
    }
    show(state);
  };
  open();
  setInterval(look, 1000);
  document.addEventListener("visibilitychange", look);
  addEventListener("offline", () => lose(state));
  addEventListener("online", open);
  document.addEventListener(UNREACHABLE, () => lose(state));
}

/** Not live until the next event. */
function lose(state) {
  state.isLive = false;
  show(state);
}

function show({ isLive, heard }) {
  const connection = find("connection");
  const name = isLive ? "live" : heard === null ? "connecting" : "waiting";
  const age = heard === null ? "" : ` · last update ${ageOf((Date.now() - heard) / 1000)} ago`;
  const text = { live: "Live", connecting: "Connecting", waiting: `No connection${age}` }[name];
  connection.dataset.state = name;
  if (connection.textContent !== text) connection.textContent = text;
  connection.title = isLive ? age.slice(3) : "";
}

function ageOf(seconds) {
  const whole = Math.max(0, seconds);
  if (whole < 100) return `${Math.floor(whole)} s`;
  return whole < 5400 ? `${Math.round(whole / 60)} min` : `${Math.round(whole / 3600)} h`;
}
