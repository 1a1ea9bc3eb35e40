// Tells when the page's stream is lost, and opens it again where htmx would not. Everything works without it.
(() => {
  "use strict";

  const SILENT_MS = 30000; // three signs of life missed
  const AGAIN_MS = 5000;
  const banner = document.getElementById("connection");
  const since = document.getElementById("connection-since");
  const part = document.getElementById("live");
  if (!part || !banner) return;

  let connection = null;
  let heard = Date.now();
  let lost = false;

  function alive() {
    heard = Date.now();
    if (!lost) return;
    lost = false;
    banner.hidden = true;
    part.classList.remove("stale");
  }

  function gone() {
    if (lost || document.hidden) return;
    lost = true;
    since.textContent = new Date(heard).toLocaleTimeString([], { hourCycle: "h23" });
    banner.hidden = false;
    part.classList.add("stale");
  }

  part.addEventListener("htmx:sse:before:connection", (event) => {
    connection = event.detail.connection;
    if (connection.attempt > 0) gone();
  });
  part.addEventListener("htmx:sse:after:connection", alive);
  part.addEventListener("htmx:sse:before:message", alive);
  part.addEventListener("htmx:sse:error", (event) => {
    // Signed out meanwhile: the page's own address leads to the sign-in.
    if (event.detail.status === 401) location.reload();
    else gone();
  });
  part.addEventListener("htmx:sse:close", () => {
    connection = null;
  });

  setInterval(() => {
    if (document.hidden) {
      heard = Date.now(); // htmx closes the stream of a page that nobody sees
      return;
    }
    if (connection && Date.now() - heard > SILENT_MS) {
      gone();
      if (connection.reader) connection.reader.cancel();
    } else if (!connection && Date.now() - heard > AGAIN_MS) {
      gone();
      htmx.trigger(part, "swapd:again");
    }
  }, 1000);
})();
