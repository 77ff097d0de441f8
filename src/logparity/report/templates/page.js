"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const narrow = () => window.innerWidth < 760;

  const themed = (layout) => {
    const copy = structuredClone(layout);
    copy.font = { color: css("--soft"), family: getComputedStyle(document.body).fontFamily, size: narrow() ? 11 : 12 };
    copy.hoverlabel = { bgcolor: css("--card"), bordercolor: css("--line"), font: { color: css("--text") } };
    for (const axis of ["xaxis", "yaxis"]) {
      Object.assign((copy[axis] ??= {}), { gridcolor: css("--line"), linecolor: css("--line"), zeroline: false, automargin: true });
    }
    if (narrow() && copy.yaxis.scaleanchor) copy.height = 380;
    return copy;
  };

  // On a phone the colour scale would take a third of the width; hovering gives the numbers.
  const traces = (data) =>
    structuredClone(data).map((trace) => (trace.colorbar && narrow() ? { ...trace, showscale: false } : trace));

  const draw = () => {
    for (const [name, figure] of Object.entries(figures)) {
      const place = document.getElementById("figure-" + name);
      Plotly.react(place, traces(figure.data), themed(figure.layout), { responsive: true, displayModeBar: false });
    }
    document.documentElement.dataset.drawn = "true";
  };

  const unpack = async (id) => {
    const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (c) => c.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  };

  const start = async () => {
    const library = document.createElement("script");
    library.textContent = await unpack("plotly");
    document.head.append(library);
    draw();
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  };

  start().catch((error) => {
    const place = document.getElementById("problem");
    place.textContent = "The figures could not be drawn: " + error + ". A browser of 2023 or later is needed; numbers and tables are complete.";
    place.hidden = false;
  });
})();
