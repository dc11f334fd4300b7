// Chooses devices: a search field with a list of several choices, by pointer, keyboard or screen reader.

import { find, make } from "./elements.js";

/** Binds the field, the list and the chosen names of the page. */
export class DevicePicker {
  #field = find("device");
  #list = find("device-list");
  #picked = find("picked");
  #choices = [];
  #names = [];
  #shown = [];
  #active = -1;
  #announce;

  constructor(announce) {
    this.#announce = announce;
    this.#field.addEventListener("input", () => this.#open());
    this.#field.addEventListener("click", () => this.#open());
    this.#field.addEventListener("keydown", (event) => this.#press(event));
    this.#field.addEventListener("blur", () => this.#close());
    // Without this a click on the list would take the focus, and close the list before it chooses.
    this.#list.addEventListener("pointerdown", (event) => event.preventDefault());
    this.#list.addEventListener("click", (event) => {
      const option = event.target.closest("[role=option]");
      if (option) this.#toggle(this.#shown[Number(option.dataset.place)].name);
    });
  }

  offer(choices) {
    this.#choices = choices;
  }

  get names() {
    return [...this.#names];
  }

  set names(names) {
    this.#names = [...names];
    this.#showPicked();
  }

  #press(event) {
    const isOpen = !this.#list.hidden;
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10 };
    if (event.key in steps) {
      event.preventDefault();
      if (!isOpen) this.#open();
      this.#move(this.#active < 0 && steps[event.key] < 0 ? this.#shown.length - 1 : this.#active + steps[event.key]);
    } else if (event.key === "Enter" && isOpen && this.#active >= 0) {
      event.preventDefault();
      this.#toggle(this.#shown[this.#active].name);
    } else if (event.key === "Enter" && isOpen && this.#field.value) {
      event.preventDefault();
    } else if (event.key === "Escape" && isOpen) {
      event.preventDefault();
      this.#close();
    } else if (event.key === "Backspace" && !this.#field.value && this.#names.length) {
      this.#toggle(this.#names.at(-1));
    }
  }

  #open() {
    const words = this.#field.value.toLowerCase().split(/\s+/).filter(Boolean);
    this.#shown = this.#choices.filter((choice) => words.every((word) => choice.words.toLowerCase().includes(word)));
    this.#active = words.length && this.#shown.length ? 0 : -1;
    this.#list.hidden = false;
    this.#field.setAttribute("aria-expanded", "true");
    this.#show();
    if (words.length) this.#announce(`${this.#shown.length || "No"} ${this.#shown.length === 1 ? "device" : "devices"}`);
  }

  #close() {
    this.#list.hidden = true;
    this.#active = -1;
    this.#field.setAttribute("aria-expanded", "false");
    this.#field.removeAttribute("aria-activedescendant");
  }

  #move(place) {
    if (!this.#shown.length) return;
    this.#active = Math.max(0, Math.min(this.#shown.length - 1, place));
    this.#show();
  }

  #toggle(name) {
    const isPicked = this.#names.includes(name);
    this.#names = isPicked ? this.#names.filter((each) => each !== name) : [...this.#names, name];
    this.#announce(`${name} ${isPicked ? "removed" : "chosen"}`);
    this.#showPicked();
    if (!this.#list.hidden) this.#show();
  }

  #show() {
    const groups = new Map();
    this.#shown.forEach((choice, place) => {
      if (!groups.has(choice.group)) groups.set(choice.group, []);
      groups.get(choice.group).push(this.#option(choice, place));
    });
    const parts = [...groups].map(([group, options]) =>
      make("li", { role: "presentation" },
        make("div", { class: "group", "aria-hidden": "true" }, group),
        make("ul", { role: "group", "aria-label": group }, options)));
    if (!parts.length) {
      const none = { role: "option", "aria-disabled": "true", "aria-selected": "false", class: "none" };
      parts.push(make("li", none, "No device of the catalogue has this name."));
    }
    this.#list.replaceChildren(...parts);
    const active = this.#active < 0 ? null : find(`device-${this.#active}`);
    if (active) {
      this.#field.setAttribute("aria-activedescendant", active.id);
      active.scrollIntoView({ block: "nearest" });
    } else this.#field.removeAttribute("aria-activedescendant");
  }

  #option(choice, place) {
    const isPicked = this.#names.includes(choice.name);
    // The group's title names a slice's device to those who see it.
    const [shown] = choice.name.split("@");
    return make("li",
      {
        role: "option", id: `device-${place}`, "data-place": place, "aria-selected": String(isPicked),
        "aria-label": `${choice.name}, ${choice.note}`, class: place === this.#active ? "active" : null,
      },
      make("span", { class: "tick", "aria-hidden": "true" }, isPicked ? "✓" : ""),
      shown,
      make("span", { class: "note" }, ` ${choice.note}`));
  }

  #showPicked() {
    this.#picked.replaceChildren(...this.#names.map((name, place) =>
      make("li", {}, make("button",
        {
          type: "button", "aria-label": `Remove ${name}`,
          onclick: () => {
            this.#toggle(name);
            this.#close();
            // The field opens its list on a click, an arrow or a letter: not where the focus comes to it.
            (this.#picked.children[place]?.firstElementChild ?? this.#field).focus();
          },
        },
        name, make("span", { "aria-hidden": "true", class: "cross" }, "×")))));
  }
}
