// Sorting of the comparison: first click best first, second click reversed, third as given.
function listenToHeadings() {
  const body = $("#comparison tbody");
  const given = [...body.rows];
  const key = (row, column) => {
    const cell = row.cells[column];
    if (column === 0) return cell.textContent;
    return cell.dataset.value === "" ? null : Number(cell.dataset.value);
  };
  const order = (a, b) => typeof a === "string" ? a.localeCompare(b, "en") : a - b;
  for (const button of $$("#comparison .sort")) {
    button.addEventListener("click", () => {
      const heading = button.closest("th");
      const best = "larger" in button.dataset ? "descending" : "ascending";
      const worst = best === "ascending" ? "descending" : "ascending";
      const now = heading.getAttribute("aria-sort");
      const next = now === null ? best : now === best ? worst : null;
      for (const other of $$("#comparison thead th")) other.removeAttribute("aria-sort");
      if (next) heading.setAttribute("aria-sort", next);
      const column = Number(button.dataset.column);
      const rows = next ? [...given].sort((x, y) => {
        const [a, b] = [key(x, column), key(y, column)];
        // Runs without the figure come last in either direction.
        if (a === null || b === null) return (a === null) - (b === null);
        return next === "ascending" ? order(a, b) : order(b, a);
      }) : given;
      body.append(...rows);
    });
  }
}
