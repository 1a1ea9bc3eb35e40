// Takes the one-time code out of the link's fragment and puts it into the form. Without a script one copies it.
(() => {
  "use strict";

  const key = document.getElementById("key");
  if (!key) return;

  function take() {
    const code = location.hash.slice(1);
    if (!/^[\w-]{20,100}$/.test(code)) return;
    // Neither the history nor a bookmark keeps it.
    history.replaceState(null, "", location.pathname + location.search);
    key.value = code;
    document.getElementById("linked").hidden = false;
    for (const part of document.querySelectorAll(".sign-in .field, #key-help")) part.hidden = true;
    document.getElementById("enter").focus();
  }

  window.addEventListener("hashchange", take);
  take();
})();
