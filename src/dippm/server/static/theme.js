"use strict";
// Runs before the page is drawn, so that a chosen theme does not flash.
(() => {
  const key = "dippm-theme";
  const apply = (theme) => {
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
  };
  let kept = "system";
  try {
    kept = localStorage.getItem(key) ?? "system";
  } catch {
    // Storage may be forbidden: then the choice holds until the page is left.
  }
  apply(kept);
  addEventListener("DOMContentLoaded", () => {
    const select = document.getElementById("theme");
    select.value = document.documentElement.dataset.theme ?? "system";
    select.addEventListener("change", () => {
      apply(select.value);
      try {
        localStorage.setItem(key, select.value);
      } catch {
        // As above.
      }
    });
  });
})();
