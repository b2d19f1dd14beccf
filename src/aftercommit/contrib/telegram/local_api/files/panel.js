// Fault injection, and the list of recent requests.

import { clock, element, find, renew, toServer } from "./parts.js";

const FAULTS = {
  too_many_requests: (switched) => `429, retry after ${switched.retry_after} s`,
  server_error: (switched) => `${switched.status}`,
  hang: () => "no answer",
  drop: (switched) => (switched.recorded ? "delivers, drops the answer" : "drops the request"),
  slow: (switched) => `slow answer, ${switched.seconds} s`,
  blocked: () => "403 blocked",
  chat_not_found: () => "400 chat not found",
};
const MOST_SHOWN = 60;

export function initialisePanel(state) {
  const fault = find("fault");
  const choose = () => {
    const wants = fault.value === "too_many_requests" || fault.value === "slow";
    find("seconds").hidden = find("seconds-label").hidden = !wants;
    find("seconds").disabled = !wants;
  };
  fault.addEventListener("change", choose);
  choose();
  find("faults").addEventListener("submit", (event) => {
    event.preventDefault();
    void toServer("POST", "control/switches", asked(state));
  });
  find("switches").addEventListener("click", (event) => {
    const off = event.target.closest("[data-switch]");
    if (off) void toServer("DELETE", `control/switches/${off.dataset.switch}`);
  });
  find("heal").addEventListener("click", () => void toServer("DELETE", "control/switches"));
  find("with-polls").addEventListener("change", () => drawAnswers(state));
}

function asked(state) {
  const [fault, recorded] = find("fault").value.split(" ");
  const seconds = Number(find("seconds").value);
  const times = find("times").value;
  return {
    fault,
    // Faults apply to sendMessage only: with a failing getUpdates the bot would receive nothing.
    method: "sendMessage",
    ...(recorded && { recorded: true }),
    ...(fault === "too_many_requests" && { retry_after: seconds }),
    ...(fault === "slow" && { seconds }),
    ...(times && { times: Number(times) }),
    ...(find("scope").value === "chat" && state.selected !== null && { chat_id: state.selected }),
  };
}

export function drawSwitches(state) {
  const scope = find("scope");
  const isChosen = state.selected !== null;
  scope.querySelector('[value="chat"]').disabled = !isChosen;
  if (!isChosen) scope.value = "all";
  const items = state.switches.map((switched) => {
    const off = element("button", { class: "button quiet", type: "button", "data-switch": switched.switch }, "Remove");
    const whom = switched.chat_id === null ? "every chat" : (state.chats.get(switched.chat_id)?.first_name ?? switched.chat_id);
    const left = switched.left === null ? "until removed" : `${switched.left} more`;
    return element("li", {}, element("span", {}, FAULTS[switched.fault](switched), element("span", { class: "soft" }, ` ${whom}, ${left}`)), off);
  });
  renew(find("switches"), items);
  find("heal").hidden = items.length < 2;
  const on = find("faults-on");
  on.hidden = items.length === 0;
  on.textContent = String(items.length);
}

export function drawAnswers(state) {
  const withPolls = find("with-polls").checked;
  const calls = [...state.calls.values()]
    .filter((call) => withPolls || call.method.toLowerCase() !== "getupdates")
    .slice(-MOST_SHOWN)
    .reverse();
  find("answers").replaceChildren(...calls.map((call) => answer(call, state)));
}

function answer(call, state) {
  const isOpen = call.took === null;
  const status = isOpen ? "…" : String(call.status ?? "none");
  const kind = isOpen ? "open" : call.status === 200 ? "good" : "bad";
  const whom = call.chat_id === null ? "" : ` to ${state.chats.get(call.chat_id)?.first_name ?? call.chat_id}`;
  const lost = call.was_taken && call.status !== 200 && "the message was delivered anyway";
  const about = [call.description, !isOpen && call.status === null && "no answer", lost, call.too_early && "sent too early"];
  return element(
    "li",
    { class: kind },
    element("span", { class: "status" }, status),
    element("span", {}, `${call.method}${whom}`),
    element("time", { class: "soft" }, clock(call.at, true)),
    element("span", { class: "soft about" }, about.filter(Boolean).join("; ")),
  );
}
