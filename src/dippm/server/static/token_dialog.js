// Asks the person for the service's token.

import { find } from "./elements.js";

/** Promises a token, or null where the person has none. */
export function askToken(isWrong) {
  const dialog = find("token-dialog");
  const field = find("token");
  find("token-why").textContent = isWrong ? "The service does not know that token." : "";
  field.value = "";
  return new Promise((resolve) => {
    const finish = (token) => {
      listening.abort();
      dialog.close();
      resolve(token);
    };
    const listening = new AbortController();
    const { signal } = listening;
    find("token-form").addEventListener("submit", (event) => {
      event.preventDefault();
      const token = field.value.trim();
      // A header takes no others, and no token has them.
      if (/^[\x21-\x7e]+$/.test(token)) finish(token);
      else find("token-why").textContent = "A token has letters, figures and signs of ASCII, without spaces.";
    }, { signal });
    find("token-cancel").addEventListener("click", () => finish(null), { signal });
    dialog.addEventListener("cancel", (event) => {
      event.preventDefault();
      finish(null);
    }, { signal });
    dialog.showModal();
  });
}
