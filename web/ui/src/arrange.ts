/** Put children in this order, touching only what is not in its place: what has the focus keeps it. */
export function arrange(parent: Element, children: readonly Element[]): void {
  const wanted = new Set(children);
  for (const child of [...parent.children]) if (!wanted.has(child)) child.remove();
  let at = parent.firstElementChild;
  for (const child of children) {
    if (child === at) at = at.nextElementSibling;
    else parent.insertBefore(child, at);
  }
}

/** Put these in the place of the children; what is the same stays, so that a click that has begun on it ends on it. */
export function renew(parent: Element, children: readonly Element[]): void {
  const before = [...parent.children];
  arrange(
    parent,
    children.map((child, place) => (before[place]?.isEqualNode(child) ? before[place] : child)),
  );
}
