// Which policy is shown: null for all of them. Table, chips and plots listen and follow.
const selection = {
  run: null,
  listeners: [],
  onChange(listener) { this.listeners.push(listener); },
  toggle(run) {
    this.run = this.run === run ? null : run;
    document.body.dataset.policy = this.run === null ? "" : RUNS[this.run].label;
    for (const button of $$(".chip, .policy")) {
      const of = button.dataset.run;
      const pressed = of === "all" ? this.run === null : Number(of) === this.run;
      button.setAttribute("aria-pressed", String(pressed));
    }
    for (const row of $$("tbody tr[data-run]")) {
      row.classList.toggle("off", !this.shows(Number(row.dataset.run)));
    }
    for (const listener of this.listeners) listener();
  },
  shows(run) { return this.run === null || this.run === run; },
};

function paintKeys() {
  for (const key of $$(".key[data-colour]")) {
    const run = Number(key.dataset.colour);
    key.style.backgroundColor = runColour(run);
    key.classList.add(`dash-${RUNS[run].dash % DASHES.length}`);
  }
}

function listenToPolicies() {
  for (const button of $$(".chip, .policy")) {
    button.addEventListener("click", () => {
      selection.toggle(button.dataset.run === "all" ? selection.run : Number(button.dataset.run));
    });
  }
}
