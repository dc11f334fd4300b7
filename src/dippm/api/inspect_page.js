"use strict";
(() => {
  const table = document.querySelector("table.operators");
  for (const [column, head] of [...table.tHead.rows[0].cells].entries()) {
    head.querySelector("button").addEventListener("click", () => {
      // Figures are worth seeing largest first, names and the order of execution from the beginning.
      const first = head.dataset.first;
      const other = first === "descending" ? "ascending" : "descending";
      const order = head.getAttribute("aria-sort") === first ? other : first;
      for (const cell of table.tHead.rows[0].cells) cell.setAttribute("aria-sort", "none");
      head.setAttribute("aria-sort", order);
      const sign = order === "ascending" ? 1 : -1;
      const isNumber = head.classList.contains("number");
      const value = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
      const rows = [...table.tBodies[0].rows];
      rows.sort((a, b) => sign * (isNumber ? value(a) - value(b) : value(a).localeCompare(value(b))));
      table.tBodies[0].append(...rows);
    });
  }

  const plot = document.querySelector(".plot");
  const data = document.getElementById("timeline");
  if (!plot || !data) return;
  const points = JSON.parse(data.textContent);
  const cursor = plot.querySelector(".cursor");
  const readout = document.querySelector(".readout");
  const show = (index) => {
    const at = Math.max(0, Math.min(points.length - 1, index));
    const [position, memory, label] = points[at];
    cursor.style.display = "block";
    cursor.style.left = `${(100 * (at + 0.5)) / points.length}%`;
    readout.textContent = `operator ${position}: ${label}, ${memory} MiB live`;
    plot.setAttribute("aria-valuenow", at);
    plot.setAttribute("aria-valuetext", readout.textContent);
  };
  const follow = (event) => {
    const box = plot.getBoundingClientRect();
    show(Math.floor(((event.clientX - box.left) / box.width) * points.length));
  };
  plot.addEventListener("pointermove", follow);
  plot.addEventListener("pointerdown", follow);
  plot.addEventListener("keydown", (event) => {
    const now = Number(plot.getAttribute("aria-valuenow"));
    const page = Math.max(1, Math.round(points.length / 10));
    const target = {
      ArrowRight: now + 1, ArrowUp: now + 1, ArrowLeft: now - 1, ArrowDown: now - 1,
      PageUp: now + page, PageDown: now - page, Home: 0, End: points.length - 1,
    }[event.key];
    if (target === undefined) return;
    event.preventDefault();
    show(target);
  });
})();
