// Bokeh's sliders give their handle no name; the page's is named here.

export function nameHandles(root = document.querySelector("header .tools")) {
  for (const element of root?.querySelectorAll("*") ?? []) {
    if (element.matches(".noUi-handle")) element.setAttribute("aria-label", "Moment of the run");
    nameHandles(element.shadowRoot);
  }
}
