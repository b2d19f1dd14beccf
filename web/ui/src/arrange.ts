/** Put children in this order. Elements already in place are not touched, so they keep the focus. */
export function arrange(parent: Element, children: readonly Element[]): void {
  const wanted = new Set(children);
  for (const child of [...parent.children]) if (!wanted.has(child)) child.remove();
  let at = parent.firstElementChild;
  for (const child of children) {
    if (child === at) at = at.nextElementSibling;
    else parent.insertBefore(child, at);
  }
}

/** Replace the children, but keep equal ones, so that a half-finished click survives. */
export function renew(parent: Element, children: readonly Element[]): void {
  const before = [...parent.children];
  arrange(
    parent,
    children.map((child, place) => (before[place]?.isEqualNode(child) ? before[place] : child)),
  );
}
