// Bokeh's slider gives its handle no name, and its End key goes to where the range ended when the
// page was loaded; the page's handle is named here, and End is the button for the newest moment.

function* within(root) {
  for (const element of root?.querySelectorAll("*") ?? []) {
    yield element;
    yield* within(element.shadowRoot);
  }
}

const tools = () => within(document.querySelector("header .tools"));

let waiting; // for the page to hear that the moment is not the newest any more

const stopWaiting = () => clearTimeout(waiting);

function pressNewest(tries) {
  for (const element of tools()) {
    if (!element.matches("button") || !element.textContent.startsWith("newest")) continue;
    if (!element.disabled) element.click();
    else if (tries > 0) waiting = setTimeout(pressNewest, 50, tries - 1);
  }
}

function goToEnd(event) {
  stopWaiting();
  if (event.key !== "End") return;
  event.preventDefault();
  event.stopImmediatePropagation();
  pressNewest(100);
}

export function nameHandles() {
  addEventListener("pointerdown", stopWaiting, true); // the same one again changes nothing
  for (const element of tools()) {
    if (!element.matches(".noUi-handle")) continue;
    element.setAttribute("aria-label", "Moment of the run");
    element.addEventListener("keydown", goToEnd, true); // likewise
  }
}
