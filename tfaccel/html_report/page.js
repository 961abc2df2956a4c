// Draws the charts; they follow the width of the page, on paper as well.
"use strict";
{
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const charts = [...document.querySelectorAll(".chart")];
  const paperWidth = 620; // pixels

  for (const chart of charts) {
    const figure = figures[Number(chart.dataset.chart)];
    Plotly.newPlot(chart, figure.data, figure.layout, { displayModeBar: false, responsive: true });
  }
  window.addEventListener("beforeprint", () => {
    for (const chart of charts) Plotly.relayout(chart, { autosize: false, width: paperWidth });
  });
  window.addEventListener("afterprint", () => requestAnimationFrame(() => {
    for (const chart of charts) Plotly.relayout(chart, { autosize: true, width: null });
  }));
}
