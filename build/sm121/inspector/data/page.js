"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const MOST = 300;

  // Findings: a button per verdict hides and shows its rows.
  for (const button of document.querySelectorAll("[data-verdict]")) {
    const show = () => {
      const on = button.getAttribute("aria-pressed") === "true";
      for (const row of document.querySelectorAll(`tr[data-of="${button.dataset.verdict}"]`)) row.hidden = !on;
    };
    button.addEventListener("click", () => {
      button.setAttribute("aria-pressed", button.getAttribute("aria-pressed") === "true" ? "false" : "true");
      show();
    });
    show();
  }

  // Kernels: rows of [name, library, family, state, body, bytes, registers, FP4 and FP8 instructions].
  const search = byId("search"), state = byId("state"), family = byId("family"), library = byId("library");
  const rows = byId("rows"), count = byId("count");
  if (!search) return;
  const option = (select, text, value) => {
    const item = document.createElement("option");
    item.textContent = text;
    item.value = value;
    select.append(item);
  };
  data.states.forEach((name, index) => option(state, name, index));
  data.families.forEach((name, index) => option(family, name, index));
  data.libraries.forEach((name, index) => option(library, name, index));
  const cell = (row, text, kind) => {
    const item = document.createElement("td");
    if (kind) item.className = kind;
    item.textContent = text;
    row.append(item);
  };
  const lower = data.kernels.map((kernel) => kernel[0].toLowerCase());
  const draw = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const wanted = [[1, library.value], [2, family.value], [3, state.value]].filter(([, value]) => value !== "");
    const found = [];
    let total = 0;
    data.kernels.forEach((kernel, index) => {
      if (wanted.some(([field, value]) => kernel[field] !== Number(value))) return;
      if (!words.every((word) => lower[index].includes(word))) return;
      total += 1;
      if (found.length < MOST) found.push(kernel);
    });
    rows.replaceChildren(...found.map((kernel) => {
      const row = document.createElement("tr");
      cell(row, kernel[0], "name");
      cell(row, data.families[kernel[2]]);
      cell(row, data.states[kernel[3]] + (kernel[4] === "small" ? " (small)" : ""));
      cell(row, kernel[5] ? kernel[5].toLocaleString("en") : "", "n");
      cell(row, kernel[6] ?? "", "n");
      cell(row, kernel[7] || "", "n");
      cell(row, kernel[8] || "", "n");
      return row;
    }));
    count.textContent = total > found.length ? `${total} kernels, the first ${found.length} shown` : `${total} kernels`;
  };
  let waiting = 0;
  search.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(draw, 120); });
  for (const select of [state, family, library]) select.addEventListener("change", draw);
  draw();
})();
