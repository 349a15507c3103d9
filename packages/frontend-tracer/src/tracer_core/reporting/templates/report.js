"use strict";
const search = document.getElementById("search");
const found = document.getElementById("found");
const parts = [...document.querySelectorAll("details[data-part]")];
const rows = [...document.querySelectorAll("main .row")].map((row) => [row, row.textContent.toLowerCase()]);
const buttons = [...document.querySelectorAll("[data-filter]")];
const opened = new Map(parts.map((part) => [part, part.open]));

for (const button of buttons) {
  const present = parts.some((part) => part.dataset.part === button.dataset.filter);
  button.classList.toggle("hidden", !present);
  button.addEventListener("click", () => {
    button.setAttribute("aria-pressed", button.getAttribute("aria-pressed") !== "true");
    show();
  });
}

function show() {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  const wanted = new Set(buttons.filter((b) => b.getAttribute("aria-pressed") === "true").map((b) => b.dataset.filter));
  let count = 0;
  const holding = new Set();
  for (const [row, text] of rows) {
    const part = row.closest("details[data-part]");
    const matches = words.every((word) => text.includes(word));
    row.classList.toggle("hidden", !matches);
    if (matches && (!wanted.size || wanted.has(part.dataset.part))) {
      count += 1;
      holding.add(part);
    }
  }
  for (const part of parts) {
    const chosen = !wanted.size || wanted.has(part.dataset.part);
    part.classList.toggle("hidden", !chosen || (words.length > 0 && !holding.has(part)));
    part.open = words.length || wanted.size ? true : opened.get(part);
  }
  found.textContent = words.length ? `${count} found` : "";
}

function follow() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let at = target; at; at = at.parentElement) {
    if (at.tagName === "DETAILS") at.open = true;
  }
  if (target) target.scrollIntoView();
}

search.addEventListener("input", show);
addEventListener("hashchange", follow);
addEventListener("keydown", (event) => {
  if (event.key === "/" && document.activeElement !== search) {
    event.preventDefault();
    search.focus();
  }
});
follow();
