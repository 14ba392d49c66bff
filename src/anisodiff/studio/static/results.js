// Results: the pages of docs/results.
import {$, complain, get, make, options} from "./api.js";
import {drawPage, filterRows} from "./pages.js";

export function startResults() {
  let pages = null;

  /** The page that a link of the page at hand means. */
  function known(target) {
    const here = $("e-page").value.split("/").slice(0, -1);
    for (const part of target.split("/")) {
      if (part === "..") here.pop();
      else if (part && part !== ".") here.push(part);
    }
    const place = here.join("/");
    return pages.some((one) => one.page === place) ? place : null;
  }

  async function open(page) {
    try {
      $("e-page").value = page;
      const found = await get(`/api/page?${new URLSearchParams({where: "results", page})}`);
      drawPage($("e-body"), "results", found, {knows: known, open});
      filterRows($("e-body"), $("e-filter").value);
      scrollTo(0, 0);
    } catch (error) { complain(error.message); }
  }

  $("e-page").addEventListener("change", () => open($("e-page").value));
  $("e-filter").addEventListener("input", () => filterRows($("e-body"), $("e-filter").value));

  return async () => {
    if (pages) return;
    try {
      const found = await get("/api/results");
      pages = found.pages;
      if (found.missing || !pages.length) {
        $("e-body").replaceChildren(make("p", {}, "The pages of results come with the repository. Start there, or with --results FOLDER."));
        return;
      }
      options($("e-page"), pages.map(({page, title}) => [page, page.includes("/") ? `${title} (${page.split("/").slice(0, -1).join("/")})` : title]));
      open(pages[0].page);
    } catch (error) { complain(error.message); }
  };
}
