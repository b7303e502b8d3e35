// Tables sort by the column whose heading is pressed; without scripts they keep their order.
function sortable(table) {
  const heads = [...table.tHead.rows[0].cells];
  const body = table.tBodies[0];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const descending = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      const sign = descending ? -1 : 1;
      const rows = [...body.rows].map((row) => [row, key(row.cells[column].textContent)]);
      rows.sort(([, a], [, b]) => {
        if (a === "" || b === "") return (a === "") - (b === "");  // empty cells stay last
        if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
        return sign * (typeof a === "number" ? a - b : a.localeCompare(b));
      });
      body.append(...rows.map(([row]) => row));
    });
  });
}

// A cell such as "82.8 ± 0.3", "+0.20 ▲" or "[-0.62, -0.29]" sorts by its first number.
function key(text) {
  const found = text.trim().match(/^\[?([+-]?\d+(?:\.\d+)?)(?=$|[\s,\]])/);
  if (found) return Number(found[1]);
  return text.trim() === "–" ? "" : text.trim();
}

document.querySelectorAll("table").forEach(sortable);

// Print what is folded away, too.
addEventListener("beforeprint", () => {
  document.querySelectorAll("details").forEach((details) => { details.open = true; });
});
