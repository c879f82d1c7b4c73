// What the script of an HTML component gets from Gradio, as the body of a function.
type Pressed = { closest(selector: string): any };
type Root = {
  querySelector(selector: string): any;
  closest(selector: string): any;
  addEventListener(type: "click" | "keydown", listener: (event: KeyboardEvent & { target: Pressed }) => void): void;
} & HTMLElement;
declare const element: Root;
declare const props: { value: string };
declare const server: { sheet(lesson: string): Promise<string> };
declare function trigger(event: string, data?: object): void;
declare function watch(property: string, changed: () => void): void;
interface DocumentEventMap {
  "specviz:lesson": CustomEvent;
}
