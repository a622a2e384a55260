// Keeps the end of the page in view while the page grows, for a reader who is there; one who has scrolled up stays there.

const NEAR_PX = 60;

export function following(change) {
  const page = document.documentElement;
  const near = page.scrollHeight - innerHeight - scrollY < NEAR_PX;
  change();
  if (near) scrollTo({ top: page.scrollHeight, behavior: "instant" });
}
