// Draws the last six hours over the picture that came with the page, so that each moment can be read off.
(() => {
  "use strict";

  const RENEW_MS = 15000;
  const HEIGHT_PX = 220;
  const place = document.getElementById("load");
  if (!place || typeof uPlot === "undefined") return;

  const picture = place.querySelector("figure");
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const clock = (at) => new Date(at * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
  const percent = (_, value) => (value == null ? "–" : `${Math.round(value)}%`);
  let plot = null;

  function options() {
    const axis = { stroke: color("--quiet"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false } };
    return {
      width: place.clientWidth,
      height: HEIGHT_PX,
      scales: { y: { range: [0, 100] } },
      axes: [{ ...axis, values: (_, ticks) => ticks.map(clock) }, { ...axis, size: 46, values: (_, ticks) => ticks.map((tick) => `${tick}%`) }],
      series: [
        { label: "At", value: (_, at) => (at == null ? "–" : clock(at)) },
        {
          label: "Your work came first",
          fill: color("--amber-soft"),
          width: 0,
          points: { show: false },
          value: (_, value) => (value == null ? "no" : "yes"),
        },
        { label: "Your use", stroke: color("--ink"), width: 1.5, fill: color("--sunken"), value: percent },
        { label: "Threshold", stroke: color("--amber-mark"), width: 1.5, dash: [5, 4], value: percent },
      ],
    };
  }

  async function columns() {
    const answer = await fetch(place.dataset.load, { headers: { Accept: "application/json" } });
    if (!answer.ok) return null;
    const load = await answer.json();
    return [load.at, load.engaged, load.load_pct, load.threshold_pct]; // what is drawn first lies beneath
  }

  async function show() {
    if (document.hidden) return;
    const data = await columns().catch(() => null);
    if (!data) return;
    if (plot) {
      plot.setData(data);
      return;
    }
    plot = new uPlot(options(), data, place);
    picture.classList.add("hidden"); // still read out
  }

  function again() {
    if (plot) plot.destroy();
    plot = null;
    show();
  }

  addEventListener("resize", () => plot && plot.setSize({ width: place.clientWidth, height: HEIGHT_PX }));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  document.addEventListener("visibilitychange", show);
  setInterval(show, RENEW_MS);
  show();
})();
