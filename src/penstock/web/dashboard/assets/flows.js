// The graph of a flow keeps its place while it is brought up to date, and begins at the node that runs, or at the first.

/** @param {Element} part  @param {number} left  @param {number} top */
export function keepPlace(part, left, top) {
  if (left) part.scrollLeft = left;
  if (top) part.scrollTop = top;
}

/** A field for JSON says at once what is wrong with it. */
function startJson() {
  document.addEventListener("input", (event) => {
    const field = event.target;
    if (!(field instanceof HTMLTextAreaElement) || !("json" in field.dataset)) return;
    let wrong = "";
    try {
      if (field.value.trim()) JSON.parse(field.value);
    } catch (error) {
      if (error instanceof SyntaxError) wrong = `This is not JSON: ${error.message}`;
    }
    field.setCustomValidity(wrong);
  });
}

export function startFlows() {
  startJson();
  const graph = document.getElementById("graph");
  const at = graph?.querySelector(".w-running, .w-suspended, .w-dead") ?? graph?.querySelector(".box");
  if (!graph || !at) return;
  const [box, frame] = [at.getBoundingClientRect(), graph.getBoundingClientRect()];
  if (box.right > frame.right) graph.scrollLeft += box.left - frame.left - frame.width / 2 + box.width / 2;
  if (box.bottom > frame.bottom) graph.scrollTop += box.top - frame.top - frame.height / 2;
}
