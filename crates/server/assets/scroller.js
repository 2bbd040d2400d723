// Keeps the newest line visible while text arrives, unless the user has scrolled away from it.

import { icon } from "./dom.js";

const NEAR = 60; // pixels

export class Scroller {
  constructor(element, button) {
    this.element = element;
    this.button = button;
    this.following = true;
    this.top = 0;
    button.append(icon("down"));
    button.setAttribute("aria-label", "To the newest message");
    button.title = "To the newest message";
    button.addEventListener("click", () => this.toEnd());
    element.addEventListener("scroll", () => this.onScroll(), { passive: true });
    new ResizeObserver(() => this.following && this.stick()).observe(element);
  }

  onScroll() {
    const { scrollTop, scrollHeight, clientHeight } = this.element;
    const near = scrollHeight - scrollTop - clientHeight < NEAR;
    // The page itself never scrolls up, so this was the user.
    if (scrollTop < this.top - 2 && !near) this.following = false;
    if (near) this.following = true;
    this.top = scrollTop;
    this.button.hidden = near;
  }

  stick() {
    this.element.scrollTop = this.element.scrollHeight;
  }

  // Changes the content, and stays at the end if the view was there.
  follow(change) {
    change();
    if (this.following) this.stick();
    else this.button.hidden = false;
  }

  toEnd() {
    this.following = true;
    this.button.hidden = true;
    this.stick();
  }
}
