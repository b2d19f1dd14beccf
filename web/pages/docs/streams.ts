/** Swagger UI shows an answer when it is complete, and an event stream never is: so this ends it. */

const STREAM_MS = 5_000;

/** Like `fetch`; of an event stream, the answer is what arrives in the first seconds. */
export const firstSeconds: typeof fetch = async (address, options) => {
  const response = await fetch(address, { ...options, cache: "no-store" });
  const type = response.headers.get("content-type") ?? "";
  if (!type.startsWith("text/event-stream") || response.body === null) return response;
  const text = await readFor(STREAM_MS, response.body);
  const { status, statusText, headers } = response;
  const note = `: cut off here after ${STREAM_MS / 1000} seconds by this page\n`;
  return new Response(text + note, { status, statusText, headers });
};

async function readFor(milliseconds: number, body: ReadableStream<Uint8Array>): Promise<string> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  const alarm = setTimeout(() => void reader.cancel(), milliseconds);
  let text = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return text;
      text += decoder.decode(value, { stream: true });
    }
  } finally {
    clearTimeout(alarm);
  }
}
