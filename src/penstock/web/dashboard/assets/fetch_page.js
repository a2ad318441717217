// Requests a page as a document: parsed this way it runs no script, and needs no policy of Trusted Types.

/**
 * @param {string} url
 * @param {URLSearchParams | null} form  sent by POST
 * @returns {Promise<Document | null>}  null: no answer, or one that is no page
 */
export function fetchPage(url, form = null) {
  return new Promise((resolve) => {
    const request = new XMLHttpRequest();
    request.responseType = "document";
    request.timeout = 15000;
    request.open(form ? "POST" : "GET", url);
    request.setRequestHeader("X-Penstock-Part", "1"); // it is not opened, so it will not refresh itself
    request.onloadend = () => resolve(request.status === 200 ? request.response : null);
    request.send(form);
  });
}
